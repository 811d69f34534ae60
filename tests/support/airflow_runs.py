"""Runs of one DAG in a complete Airflow: trigger, wait, and read the results over its REST API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devtools.airflow_api import AirflowApi
from devtools.stack import Stack
from support.waiting import wait_for

#: Seconds between two requests: Airflow is polled, because it sends no notifications.
ASK_EVERY = 1.0

#: Timeout in seconds of the longest wait, a whole run: ten times what it takes.
MOST = 600

ENDED = ("success", "failed")


@dataclass(frozen=True)
class Runs:
    """The runs of a DAG."""

    stack: Stack
    dag: str

    @property
    def api(self) -> AirflowApi:
        return self.stack.api

    def trigger(self, conf: dict[str, Any], run_id: str | None = None) -> str:
        return self.api.trigger(self.dag, conf, run_id=run_id)

    def end_of(self, run: str) -> str:
        """The state of the run after it has ended."""
        until(f"the end of {run}", lambda: self.api.run_state(self.dag, run) in ENDED)
        return self.api.run_state(self.dag, run)

    def result(self, run: str, task: str) -> Any:
        return self.api.result(self.dag, run, task)

    def instances(self, run: str) -> list[dict[str, Any]]:
        """The task instances of a run, as the API returns them."""
        return self.api.task_instances(self.dag, run)

    def states(self, run: str) -> dict[str, str]:
        return {each["task_id"]: each["state"] for each in self.instances(run)}

    def log(self, run: str, task: str) -> str:
        """What the last try of a task has written so far."""
        for instance in self.instances(run):
            if instance["task_id"] == task and instance["try_number"]:
                events, _ = self.api.log(instance)
                return "\n".join(str(event.get("event")) for event in events)
        return ""

    def errors(self, run: str) -> str:
        """The error events in the logs of the failed tasks of a run."""
        return "\n".join(
            str(event)
            for instance in self.instances(run)
            if instance["state"] == "failed"
            for event in self.api.log(instance)[0]
            if event.get("level") == "error"
        )


def until(what: str, true: Callable[[], Any], seconds: float = MOST) -> None:
    """Poll for a state of which Airflow or a cluster sends no notification."""
    wait_for(what, true, seconds, every=ASK_EVERY)
