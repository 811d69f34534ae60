"""The command line (``cli``), and steps without Airflow: in this process, or as processes."""

from aerotrain.standalone.steps import (
    ATTEMPT,
    CHIEF,
    predict,
    prepare,
    remove_at_exit,
    run_replicas,
    run_step,
)

__all__ = [
    "ATTEMPT",
    "CHIEF",
    "predict",
    "prepare",
    "remove_at_exit",
    "run_replicas",
    "run_step",
]
