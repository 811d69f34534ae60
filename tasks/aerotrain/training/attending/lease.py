"""A training's claim to its place in the store, where two would spoil each other's checkpoints."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.store import ExistsError, MissingError, Store

#: The claim, in the store of the training: whose it is, and how often it was renewed.
KEY = "lease.json"

#: Seconds between two renewals, and without one after which a claim is nobody's.
RENEWED_EVERY, LAPSES_AFTER = 5.0, 20.0


@contextmanager
def leased(store: Store, attempt: str, place: str) -> Iterator[None]:
    """A scope in which the training of launch ``attempt``, in the process ``place``, has the store.

    Another launch's claim is waited for until it has lapsed: nobody's clock is compared.

    Raises:
        FinalError: another launch renews its own.
    """
    claim = {"attempt": attempt, "place": place}
    _claim(store, claim)
    over = threading.Event()
    renewing = threading.Thread(target=_renew, args=(store, claim, over), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join(RENEWED_EVERY)
        with suppress(TemporaryError, FinalError):  # it lapses by itself
            store.delete(KEY)


def _claim(store: Store, claim: dict[str, Any]) -> None:
    """Be the first, or the same launch again, or wait until the first one's claim has lapsed."""
    try:
        store.put(KEY, json.dumps(claim).encode(), if_absent=True)
    except ExistsError:
        first = _found(store)
        if first is not None and first["attempt"] != claim["attempt"]:
            _wait_for(store, first)
        store.put(KEY, json.dumps(claim).encode())


def _wait_for(store: Store, first: dict[str, Any]) -> None:
    """Return when ``first`` is given up, or has not been renewed for as long as it holds."""
    print(f"{_described(first)} was the last to train here; waiting if it still does", flush=True)
    lapsed = time.monotonic() + LAPSES_AFTER
    while time.monotonic() < lapsed:
        time.sleep(1.0)
        now = _found(store)
        if now is None:
            return
        if now != first:
            raise FinalError(
                f"the store prefix {store.url} is in use by another live run, {_described(now)}; "
                "end that one, or give this run a store or a run id of its own"
            )


def _renew(store: Store, claim: dict[str, Any], over: threading.Event) -> None:
    renewals = 1
    while not over.wait(RENEWED_EVERY):
        with suppress(TemporaryError, FinalError):  # while it is away, nobody else can come either
            store.put(KEY, json.dumps({**claim, "renewals": renewals}).encode())
        renewals += 1


def _found(store: Store) -> dict[str, Any] | None:
    try:
        return dict(json.loads(store.get(KEY)))
    except MissingError:
        return None


def _described(claim: dict[str, Any]) -> str:
    return f"launch {claim['attempt']} on {claim['place']}"
