"""When a preempted replica exits: at once, or after it has saved."""

import threading

import pytest

from aerotrain.replica import PreemptionNotice


class Left(Exception):  # noqa: N818 -- what befell the process of a test
    """The process would have exited here."""


def leave() -> None:
    raise Left


def test_a_preempted_replica_that_saves_nothing_ends_at_once() -> None:
    with pytest.raises(Left):
        PreemptionNotice(leave=leave).give()


def test_a_replica_that_promised_to_save_ends_at_the_second_signal() -> None:
    notice = PreemptionNotice(grace=3600, leave=leave)
    notice.promise()
    assert not notice.given()
    notice.give()
    assert notice.given()
    with pytest.raises(Left):
        notice.give()


def test_a_replica_exits_when_its_grace_period_is_over() -> None:
    left = threading.Event()
    notice = PreemptionNotice(grace=0.01, leave=left.set)
    notice.promise()
    notice.give()
    assert left.wait(30)
