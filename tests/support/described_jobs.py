"""Trainings of several kinds of groups, as their jobs describe them."""

from typing import Any

from aerotrain.contract.job import Job

SERVED = [{"role": "chief"}, {"role": "worker", "count": 2}, {"role": "ps", "count": 2}]
GANG = [{"role": "chief"}, {"role": "worker", "count": 2}, {"role": "evaluator"}]
FED = [{"role": "input", "count": 2}]
ALONE = [{"role": "chief"}, {"role": "evaluator"}]


def job(strategy: str, replicas: list[dict[str, Any]]) -> Job:
    return Job.from_dict(
        {
            "name": "job",
            "module": "aerotrain.training.train",
            "store": "s3://bucket",
            "run": "run",
            "task": "train",
            "strategy": strategy,
            "replicas": replicas,
        }
    )
