"""Where pods look for what backends share, until they are one."""

from aerotrain_airflow.backends.base import Emit, LogLine, attempt_of, log_line

__all__ = ["Emit", "LogLine", "attempt_of", "log_line"]
