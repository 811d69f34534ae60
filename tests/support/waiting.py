"""Polling of a condition that sends no notification: a process, an API, a folder."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], seconds: float, every: float = 0.05) -> T:
    """Poll until ``condition`` returns something true, and return that.

    ``seconds`` is the timeout, ten times what it takes on a quiet machine; ``every`` is the seconds
    between two calls.

    Raises:
        AssertionError: it did not in time; the message says what was waited for.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(every)
    return found
