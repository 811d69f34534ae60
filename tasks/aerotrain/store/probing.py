"""A probe that checks, before an hour of training, that a store can be used."""

import uuid

from aerotrain.contract.errors import FinalError
from aerotrain.store.errors import ChangedError, ExistsError
from aerotrain.store.protocol import Store

_WORDS = b"aerotrain checks that this store can be written and read\n"


def probe(store: Store) -> None:
    """Write, read and delete one tiny object, and check that writes can be conditional.

    Raises:
        StoreUnavailable, StoreRefused, StoreFull, FinalError: by the answer of the store.
    """
    key = f"probe-{uuid.uuid4().hex}"
    store.put(key, _WORDS)
    try:
        read = store.get(key)
        _check_conditional_writes(store, key)
    finally:
        store.delete(key)
    if read != _WORDS:
        raise FinalError(
            f"{store.url} returned {len(read)} bytes that differ from the {len(_WORDS)} that were "
            "written; use another store"
        )


def _check_conditional_writes(store: Store, key: str) -> None:
    """Check that a conditional write fails: it keeps writers from overwriting each other."""
    for if_absent, tag in ((True, None), (False, "no version has this tag")):
        try:
            store.put(key, _WORDS, if_absent=if_absent, if_match=tag)
        except (ChangedError, ExistsError):
            continue
        raise FinalError(
            f"{store.url} ignores the conditions of a write (If-Match, If-None-Match), which keep "
            "two trainings apart; use a store that supports conditional writes"
        )
