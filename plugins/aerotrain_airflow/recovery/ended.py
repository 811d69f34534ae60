"""Where pods look for ``Ended``, until they are a backend of the controller."""

from aerotrain_airflow.controller.ended import Ended, job_ended

__all__ = ["Ended", "job_ended"]
