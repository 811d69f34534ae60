"""The interpretation of a pod's status: every row of ``pod_states.yaml``."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from aerotrain.contract.errors import FinalError, TerminationMessage
from aerotrain.contract.status import Failure, State
from aerotrain_airflow.kubernetes import states
from aerotrain_airflow.kubernetes.states import observe_pod

ROWS = yaml.safe_load((Path(__file__).parent / "pod_states.yaml").read_text())


@pytest.mark.parametrize("row", ROWS, ids=[row["seen"] for row in ROWS])
def test_the_status_of_a_pod_is_interpreted_as_in_the_table(row: dict[str, Any]) -> None:
    metadata = {"name": "train-worker-0"}
    if row.get("deleted"):
        metadata["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    seen = observe_pod({"metadata": metadata, "status": row["status"]})
    found = (seen.state, seen.failure, seen.exit_code)
    assert " ".join(str(each) for each in found if each is not None) == row["is"]
    assert row.get("says", "") in seen.reason


def test_a_pod_that_no_longer_exists_has_failed() -> None:
    seen = observe_pod(None)
    assert (seen.state, seen.failure) == (State.LOST, Failure.NODE)


def test_an_unknown_phase_is_an_error() -> None:
    pod = {"metadata": {"name": "train-chief"}, "status": {"phase": "Dreaming"}}
    with pytest.raises(FinalError, match="train-chief is in phase 'Dreaming'"):
        observe_pod(pod)


#: The condition in whose field a table's reasons appear.
_CONDITIONS = {
    id(states.STOPPED): "TerminationTarget",
    id(states.DISRUPTION): "DisruptionTarget",
    id(states.SCHEDULED): "PodScheduled",
}


def _status(table: states.Table, reason: str) -> dict[str, Any]:
    """A pod's status with this reason where the table says that it appears."""
    if table is states.POD:
        return {"phase": "Failed", "reason": reason}
    if kind := _CONDITIONS.get(id(table)):
        is_end = table is not states.SCHEDULED
        condition = {"type": kind, "reason": reason, "status": str(is_end)}
        return {"phase": "Failed" if is_end else "Pending", "conditions": [condition]}
    state = "waiting" if table is states.WAITING else "terminated"
    container = {"name": "replica", "state": {state: {"reason": reason, "exitCode": 137}}}
    return {"phase": "Pending", "containerStatuses": [container]}


@pytest.mark.parametrize(
    "name", ["TERMINATED", "POD", "STOPPED", "DISRUPTION", "SCHEDULED", "WAITING"]
)
def test_every_reason_of_the_tables_is_recognized_in_its_field(name: str) -> None:
    table: states.Table = getattr(states, name)
    for reason, row in table.items():
        status = _status(table, reason or "SomethingNew")
        seen = observe_pod({"metadata": {"name": "x"}, "status": status})
        assert row.means in (seen.state, seen.failure)
        assert seen.reason.startswith(f"{row.what} ({reason or 'SomethingNew'})")
        assert seen.reason.endswith(row.todo)


def test_unresponsive_peers_are_read_from_the_termination_message() -> None:
    said = TerminationMessage(reason="no progress for 61 s", unresponsive=frozenset({"ps-0"}))
    ended = {"terminated": {"exitCode": 76, "message": said.to_text()}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "replica", "state": ended}]}
    seen = observe_pod({"metadata": {"name": "train-chief"}, "status": status})
    assert (seen.failure, seen.unresponsive) == (Failure.HANG, {"ps-0"})
    assert seen.reason == "exited with 76: no progress for 61 s"
