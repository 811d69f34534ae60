"""States, results, events and progress lines."""

import pytest

from aerotrain.contract.errors import LIMIT, ExitCode, TerminationMessage
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import (
    Drift,
    Failure,
    Observation,
    Progress,
    State,
    job_state,
    observed_exit,
)

CHIEF = ReplicaName(Role.CHIEF, 0)
WORKER = ReplicaName(Role.WORKER, 0)
PS = ReplicaName(Role.PS, 0)


@pytest.mark.parametrize(
    ("exit_code", "state", "kind", "reason"),
    [
        (0, State.SUCCEEDED, None, "exited with 0"),
        (65, State.FAILED, None, "exited with 65"),
        (75, State.LOST, Failure.TEMPORARY, "exited with 75"),
        (76, State.LOST, Failure.HANG, "exited with 76"),
        (77, State.FAILED, None, "exited with 77"),
        (1, State.LOST, Failure.CRASH, "exited with 1"),
        (137, State.LOST, Failure.CRASH, "was ended by signal 9"),
        (143, State.LOST, Failure.PREEMPTED, "was ended by signal 15"),
        (139, State.LOST, Failure.CRASH, "was ended by signal 11"),
    ],
)
def test_an_exit_code_determines_whether_a_retry_can_help(
    exit_code: int, state: State, kind: Failure | None, reason: str
) -> None:
    expected = Observation(state=state, exit_code=exit_code, reason=reason, failure=kind)
    assert observed_exit(exit_code) == expected


def test_a_crash_by_a_signal_is_said_before_the_last_line_of_the_log() -> None:
    seen = observed_exit(139, "hello from chief")
    assert seen.sentence(CHIEF) == "chief was ended by signal 11: hello from chief"


@pytest.mark.parametrize(
    ("chief", "worker", "ps", "state"),
    [
        (State.RUNNING, State.RUNNING, State.RUNNING, State.RUNNING),
        (State.RUNNING, State.PENDING, State.RUNNING, State.PENDING),
        (State.SUCCEEDED, State.RUNNING, State.RUNNING, State.SUCCEEDED),
        (State.SUCCEEDED, State.LOST, State.RUNNING, State.SUCCEEDED),
        (State.RUNNING, State.LOST, State.RUNNING, State.LOST),
        (State.RUNNING, State.LOST, State.FAILED, State.FAILED),
        (State.FAILED, State.LOST, State.RUNNING, State.FAILED),
        (State.LOST, State.RUNNING, State.RUNNING, State.LOST),
        (State.LOST, State.FAILED, State.LOST, State.FAILED),
    ],
)
def test_the_state_of_a_job_is_that_of_its_chief_unless_another_replica_fails(
    chief: State, worker: State, ps: State, state: State
) -> None:
    seen = {CHIEF: chief, WORKER: worker, PS: ps}
    assert job_state({name: Observation(state=each) for name, each in seen.items()}) is state


def test_a_progress_line_is_found_after_any_prefix_of_a_log() -> None:
    progress = Progress(step=120, steps=540, loss=0.231, examples_per_second=4210, seconds_left=12)
    assert Progress.parse(f"[2026-11-21, 10:00:00] INFO - [chief] {progress}") == progress
    first = Progress(step=50, steps=540, loss=0.231)  # the pace is not known yet
    assert str(first) == "progress step=50 steps=540 loss=0.2310"
    assert Progress.parse(str(first)) == first
    shared = Progress(step=1, steps=2, loss=0.5, input_wait=0.25, communication=0.5)
    assert Progress.parse(str(shared)) == shared


def test_the_number_of_drifted_columns_is_found_after_any_prefix_of_a_log() -> None:
    assert Drift.parse(f"[chief] {Drift(columns=2)}") == Drift(columns=2)
    assert Drift.parse("adrift columns=2") is Drift.parse("drift columns=2 of 3") is None


@pytest.mark.parametrize("line", ["", "progress", "in progress step=1", "progress step=x steps=2"])
def test_other_lines_are_not_parsed_as_progress(line: str) -> None:
    assert Progress.parse(line) is None


def test_a_termination_message_is_a_sentence_for_people_and_names_for_programs() -> None:
    said = TerminationMessage(reason="no progress for 61 s", unresponsive=frozenset({"worker-0"}))
    assert said.to_text().splitlines()[0] == "no progress for 61 s"
    assert TerminationMessage.parse(said.to_text()) == said
    seen = observed_exit(ExitCode.FROZEN, said.to_text())
    assert seen.reason == "exited with 76: no progress for 61 s"
    assert seen.unresponsive == {"worker-0"}


def test_a_replica_that_was_ended_for_lack_of_a_heartbeat_did_hang() -> None:
    said = TerminationMessage(reason="had no heartbeat for 60 s", no_heartbeat=True)
    assert TerminationMessage.parse(said.to_text()) == said
    seen = observed_exit(137, said.to_text())
    assert (seen.state, seen.failure) == (State.LOST, Failure.HANG)
    assert seen.reason == "was ended by signal 9: had no heartbeat for 60 s"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "two\nlines",
        'a tail of a log\n{"step": 3}',
        "not\n{whole",
        "a number\n7",
    ],
)
def test_any_other_termination_message_is_the_reason(text: str) -> None:
    assert TerminationMessage.parse(text) == TerminationMessage(reason=text)


def test_a_long_termination_message_keeps_its_machine_readable_part() -> None:
    said = TerminationMessage(reason="é" * 9000, unresponsive=frozenset({"ps-1"}))
    assert len(said.to_text().encode()) <= LIMIT
    assert TerminationMessage.parse(said.to_text()).unresponsive == {"ps-1"}
