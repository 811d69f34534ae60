"""Whether Airflow retries a task that was asked to end, according to Airflow's own state."""

import threading
from typing import Any

import pytest

from aerotrain_airflow.operators.task_try import TaskTry


class Airflow:
    """Airflow's state of a task instance, and whether this try is still its current one."""

    dag_id, run_id, task_id, id = "digits", "run", "train", "try-1"

    def __init__(self, states: dict[str, Any], map_index: int = -1, *, knows: bool = True) -> None:
        self._states = states
        self._knows = knows
        self._kept: dict[str, str] = {}
        self.map_index = map_index

    def get_task_states(self, **_: Any) -> dict[str, dict[str, Any]]:
        return {"run": self._states}

    def set(self, key: str, value: str) -> None:
        self._kept[key] = value

    def get(self, key: str) -> str | None:
        return self._kept.get(key) if self._knows else None


def has_successor(airflow: Airflow) -> bool:
    context: Any = {"ti": airflow, "task_state_store": airflow}
    return TaskTry(context).has_successor()


@pytest.mark.parametrize(
    ("state", "knows", "expected"),
    [
        *((state, True, True) for state in (None, "scheduled", "queued", "up_for_retry")),
        # A user has ended it, or it is this try that runs.
        *((s, True, False) for s in ("failed", "success", "skipped", "restarting", "running")),
        ("running", False, True),
        ("restarting", False, False),
    ],
)
def test_a_try_has_a_successor_if_airflow_has_abandoned_it(
    state: str | None, knows: bool, expected: bool
) -> None:
    assert has_successor(Airflow({"train": state}, knows=knows)) == expected


def test_each_instance_of_a_mapped_task_has_its_own_state() -> None:
    states = {"train_0": "failed", "train_1": "scheduled"}
    assert [has_successor(Airflow(states, index)) for index in (0, 1)] == [False, True]


def test_without_a_response_of_airflow_no_next_try_is_expected() -> None:
    class Silent(Airflow):
        def get_task_states(self, **_: Any) -> dict[str, dict[str, Any]]:
            threading.Event().wait()
            raise AssertionError

    assert not has_successor(Airflow({}))
    assert not has_successor(Silent({}))
