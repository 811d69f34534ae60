"""The launchers: ways to run the replicas of a job, behind one protocol."""

from aerotrain_airflow.launchers.base import Launcher, LogLine, Plan, Positions

__all__ = ["Launcher", "LogLine", "Plan", "Positions"]
