"""Two chiefs in one place of the store: one holds its lease, the other is fenced."""

import json
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import ExitCode, FinalError, SupersededError
from aerotrain.contract.layout import LEASE
from aerotrain.lease import LAPSES_AFTER, Lease
from aerotrain.store import MissingError, Store, StoreUnavailable, open_store
from aerotrain.training.checkpoints.retention import complete_checkpoints
from support.training_fixtures import CHIEF, Pipeline, read_until, start_python, suspend

RESULT = "result.json"


@dataclass
class Time:
    """A clock that advances with each pause, and runs ``meanwhile`` during it."""

    now: float = 0.0
    meanwhile: Callable[[], object] = field(default=lambda: None)

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def store(store_url: str) -> Store:
    return open_store(f"{store_url}/runs/1/train")


def lease(
    store: Store, attempt: str = "first", *, restarts: int = 0, time: Time | None = None
) -> Lease:
    time = time or Time()
    return Lease(
        store,
        attempt=attempt,
        restarts=restarts,
        place="here",
        clock=time.clock,
        pause=time.pause,
    )


def taken(store: Store, attempt: str = "first", *, restarts: int = 0) -> Lease:
    made = lease(store, attempt, restarts=restarts)
    made.take()
    return made


def of(store: Store) -> dict[str, object]:
    return dict(json.loads(store.get(LEASE)))


def test_each_new_holder_of_the_lease_has_a_higher_token_and_waits_for_none_that_has_ended(
    store: Store,
) -> None:
    tokens, time = [], Time()
    for attempt in ("first", "second", "third"):
        held = lease(store, attempt, time=time)
        held.take()
        tokens.append(held.token)
        assert (of(store)["token"], of(store)["attempt"]) == (held.token, attempt)
        held.release()
    assert tokens == [1, 2, 3]
    assert time.now == 0.0
    held.take(above=7)  # as left by checkpoints after the lease was deleted by hand
    assert held.token == 8


def test_a_place_in_use_by_another_live_run_is_refused_and_that_run_named(store: Store) -> None:
    first = taken(store)
    second = lease(store, "second", time=Time(meanwhile=first.renew))
    with pytest.raises(FinalError, match=r"runs/1/train is in use.*launch first on here; end"):
        second.take()
    first.check()


def test_the_lease_of_a_killed_run_expires(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    taken(store)
    time = Time()
    second = lease(store, "second", time=time)
    second.take()
    assert time.now >= LAPSES_AFTER
    assert (second.token, of(store)["attempt"]) == (2, "second")
    assert "launch first on here was the last to train here" in capsys.readouterr().out


def test_a_launch_that_was_suspended_itself_waits_for_the_whole_lease_again(store: Store) -> None:
    first, time = taken(store), Time()
    waited: list[float] = []

    def stand_still_once() -> None:
        if not waited:
            time.now += 10 * LAPSES_AFTER  # both were stopped, as on one suspended machine
        waited.append(time.now)
        if len(waited) == 3:
            first.renew()

    time.meanwhile = stand_still_once
    with pytest.raises(FinalError, match="is in use"):
        lease(store, "second", time=time).take()


def test_a_restart_of_the_same_launch_takes_the_lease_at_once_and_an_older_one_never(
    store: Store,
) -> None:
    old = taken(store)
    time = Time()
    new = lease(store, restarts=1, time=time)
    new.take()
    assert (new.token, time.now) == (2, 0.0)
    with pytest.raises(SupersededError):
        old.check()
    with pytest.raises(SupersededError, match="launch first on here"):
        taken(store)  # one that was stopped before it took the lease
    new.check()


def test_a_holder_suspended_for_longer_than_its_lease_finds_it_taken(store: Store) -> None:
    first, second = taken(store), taken(store, "second")
    for use in (first.renew, first.check, lambda: first.put(RESULT, b"late")):
        with pytest.raises(SupersededError, match=r"launch second on here.*token 2.*had 1"):
            use()
    first.release()
    assert of(store)["attempt"] == "second"
    with pytest.raises(MissingError):
        store.get(RESULT)
    second.renew()
    second.put(RESULT, b"right")
    assert store.get(RESULT) == b"right"


def test_a_holder_suspended_between_read_and_write_overwrites_nothing(store: Store) -> None:
    store.put(RESULT, b"of an earlier try")
    first = taken(store)
    check, second = first.check, []

    def stop_after_check() -> None:
        check()
        if not second:
            second.append(taken(store, "second"))
            second[0].put(RESULT, b"right")

    first.check = stop_after_check  # type: ignore[method-assign]
    with pytest.raises(SupersededError):
        first.put(RESULT, b"late")
    assert store.get(RESULT) == b"right"


def test_a_late_write_of_an_earlier_holder_does_not_block_the_new_one(
    store: Store,
) -> None:
    second = taken(store, "second")
    check, checks = second.check, []

    def late_write() -> None:
        check()
        if not checks:
            store.put(RESULT, b"late")
        checks.append(1)

    second.check = late_write  # type: ignore[method-assign]
    second.put(RESULT, b"right")
    assert store.get(RESULT) == b"right"


@pytest.mark.parametrize("outage", ["is_away", "loses_answers"])
def test_a_store_outage_does_not_end_a_lease_that_no_other_run_took(
    store: Store, outage: str
) -> None:
    away = Away(store)
    held = taken(away)  # type: ignore[arg-type]
    setattr(away, outage, True)
    for _ in range(100 if outage == "is_away" else 1):
        with pytest.raises(StoreUnavailable):
            held.renew()
    setattr(away, outage, False)
    held.renew()
    held.check()
    assert of(store)["attempt"] == "first"


def test_a_deleted_lease_is_written_again_by_its_holder(store: Store) -> None:
    held = taken(store)
    store.delete(LEASE)
    held.renew()
    assert of(store)["token"] == 1


class Away:
    """A store that can be unavailable, or lose the responses to requests that it carried out."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.url = store.url
        self.is_away = self.loses_answers = False

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if self.is_away:
                raise StoreUnavailable("it did not answer")
            answer = getattr(self._store, name)(*arguments, **options)
            if self.loses_answers:
                raise StoreUnavailable("its answer was lost")
            return answer

        return call


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"attempt": "x", "token": "high"}'])
def test_an_invalid_lease_object_is_refused(store: Store, content: bytes) -> None:
    store.put(LEASE, content)
    with pytest.raises(FinalError, match=r"lease\.json is no lease .*delete it"):
        lease(store).take()


def test_background_renewal_reports_at_once_that_the_lease_was_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerotrain.lease.RENEWED_EVERY", 0.01)
    said: list[str] = []
    lost = threading.Event()

    def end(because: str) -> None:
        said.append(because)
        lost.set()

    first = taken(store)
    with first.renewed(end):
        take_at_once(store)
        assert lost.wait(30)
    assert len(said) == 1
    assert "launch second on here took over" in said[0]


def take_at_once(store: Store) -> None:
    """Take the lease over as after its expiry, without the wait."""
    content = {**of(store), "holder": "another", "attempt": "second", "token": 2}
    store.put(LEASE, json.dumps(content).encode())


@pytest.mark.process
def test_a_chief_that_was_frozen_ends_at_once_when_another_launch_has_taken_over(
    digits: Pipeline,
) -> None:
    arguments = {"model": "small", "data": digits.data, "epochs": 4000, "checkpoint_interval": 0.5}
    job = digits.job("train", "frozen", {**arguments, "steps_per_execution": 10})
    store = open_store(job.prefix)
    scratch = digits.folder / "scratch" / "frozen"
    scratch.mkdir(parents=True)
    environment = replica_environment(job, CHIEF, {CHIEF: "here:1"}, attempt="first")
    with start_python(["-m", "aerotrain.replica"], scratch, environment) as chief:
        try:
            read_until(chief, "is in the store")
            suspend(chief)
            take_at_once(store)
            before = complete_checkpoints(store)
            chief.send_signal(signal.SIGCONT)
            said = chief.communicate(timeout=240)[0]
        finally:
            chief.kill()
    assert chief.returncode == ExitCode.SUPERSEDED, said
    assert "error: launch second on" in said
    assert complete_checkpoints(store) == before
    assert of(store)["attempt"] == "second"
    assert not store.exists(RESULT)
