"""A watch tells a failure of the API from a stop of its own process: pure."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aerotrain_airflow.kubernetes import watch
from aerotrain_airflow.kubernetes.cluster import UnavailableError
from aerotrain_airflow.kubernetes.watch import STOPPED, PodWatch, StopDetector


class Away:
    """An API whose first requests fail, each after ``meanwhile``."""

    def __init__(self, meanwhile: Callable[[], None], times: int) -> None:
        self._meanwhile = meanwhile
        self._times = times

    async def pages(self, _kind: str, *, labels: str) -> AsyncIterator[Any]:
        if self._times:
            self._times -= 1
            self._meanwhile()
            raise UnavailableError("TimeoutError")
        yield [], "1"
        raise asyncio.CancelledError  # the end of the test


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def goes_on(self, seconds: float) -> None:
        self.now += seconds


def watched(
    meanwhile: Callable[[], None], pulse: StopDetector, said: list[str], times: int = 1
) -> None:
    api: Any = Away(meanwhile, times)
    pods = PodWatch(api, "job=job", lambda *_: None, lambda *_: None, said.append, pulse)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(pods.run())


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PAUSES", (0.0, 0.0))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.mark.parametrize("loses_connection", [True, False])
def test_a_stop_of_the_own_process_is_reported_once_and_not_as_an_unavailable_api(
    said: list[str], loses_connection: bool
) -> None:
    clock = Clock()
    pulse = StopDetector(said.append, clock)
    if loses_connection:
        watched(lambda: clock.goes_on(74), pulse, said)
    else:
        clock.goes_on(74)
    assert pulse.was_stopped_since(100.0)
    assert [each.partition(":")[0] for each in said] == ["this process did not respond for 74 s"]


def test_an_unavailable_api_is_reported_as_such_also_after_a_stop(said: list[str]) -> None:
    clock = Clock()
    pulse = StopDetector(lambda _: None, clock)
    clock.goes_on(STOPPED + 1)
    assert pulse.was_stopped_since(0.0)
    clock.goes_on(1)
    watched(lambda: None, pulse, said, times=3)
    assert said == ["the Kubernetes API is away (TimeoutError); the replicas continue"]


def test_a_process_that_is_only_slow_was_not_stopped(said: list[str]) -> None:
    clock = Clock()
    pulse = StopDetector(said.append, clock)
    for _ in range(20):
        clock.goes_on(STOPPED)
        assert not pulse.was_stopped_since(0.0)
    assert not said
