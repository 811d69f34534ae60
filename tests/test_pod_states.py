"""The interpretation of a pod's status: every row of ``pod_states.yaml``."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from aerotrain.contract.errors import FinalError, TerminationMessage
from aerotrain.contract.status import Failure, Observation, State
from aerotrain_airflow.kubernetes.reasons import TABLE, Field, Reason
from aerotrain_airflow.kubernetes.states import observe_pod

ROWS = yaml.safe_load((Path(__file__).parent / "pod_states.yaml").read_text())


@pytest.mark.parametrize("row", ROWS, ids=[row["seen"] for row in ROWS])
def test_the_status_of_a_pod_is_interpreted_as_in_the_table(row: dict[str, Any]) -> None:
    metadata = {"name": "train-worker-0"}
    if row.get("deleted"):
        metadata["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    assert observe_pod({"metadata": metadata, "status": row["status"]}) == Observation(
        state=State(row["state"]),
        exit_code=row.get("exit_code"),
        reason=row.get("reason", ""),
        failure=Failure(row["failure"]) if "failure" in row else None,
    )


def test_a_pod_that_no_longer_exists_has_failed() -> None:
    seen = observe_pod(None)
    assert seen.state is State.LOST
    assert "its pod was deleted" in seen.reason


def test_an_unknown_phase_is_an_error() -> None:
    pod = {"metadata": {"name": "train-chief"}, "status": {"phase": "Dreaming"}}
    with pytest.raises(FinalError, match="train-chief is in phase 'Dreaming'; this aerotrain"):
        observe_pod(pod)


REASONS = [
    (field, reason, row) for field, rows in TABLE.items() for reason, row in rows.items() if reason
]


@pytest.mark.parametrize(
    ("field", "reason", "row"), REASONS, ids=[f"{field}-{reason}" for field, reason, _ in REASONS]
)
def test_every_reason_of_the_table_is_recognized_in_its_field(
    field: Field, reason: str, row: Reason
) -> None:
    status: dict[str, Any] = {"phase": "Pending"}
    container = {"reason": reason, "exitCode": 137}
    if field is Field.POD:
        status = {"phase": "Failed", "reason": reason}
    elif field is Field.DISRUPTION:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        status = {"phase": "Failed", "conditions": [condition]}
    elif field is Field.SCHEDULED:
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        status["conditions"] = [condition]
    else:
        state = "waiting" if field is Field.WAITING else "terminated"
        status["containerStatuses"] = [{"name": "replica", "state": {state: container}}]
    seen = observe_pod({"metadata": {"name": "x"}, "status": status})
    assert (seen.state, seen.failure) == (row.state, row.failure)
    assert seen.reason.startswith(f"{row.what} ({reason})")
    assert seen.reason.endswith(row.todo)


def test_unresponsive_peers_are_read_from_the_termination_message() -> None:
    said = TerminationMessage(reason="no progress for 61 s", unresponsive=frozenset({"ps-0"}))
    ended = {"terminated": {"exitCode": 76, "message": said.to_text()}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "replica", "state": ended}]}
    seen = observe_pod({"metadata": {"name": "train-chief"}, "status": status})
    assert (seen.failure, seen.unresponsive) == (Failure.HANG, {"ps-0"})
    assert seen.reason == "exited with 76: no progress for 61 s"
