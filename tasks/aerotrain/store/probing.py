"""To find out at once, and not after an hour of training, whether a store can be used."""

import uuid

from aerotrain.contract.errors import FinalError
from aerotrain.store.errors import ChangedError, ExistsError
from aerotrain.store.protocol import Store

_WORDS = b"aerotrain asks whether this store can be written and read\n"


def probe(store: Store) -> None:
    """Write, read and delete one tiny object, and see that conditions on a write are heeded.

    Raises:
        StoreUnavailable, StoreRefused, StoreFull, FinalError: as the store answered.
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
            f"{store.url} gave back {len(read)} other bytes than the {len(_WORDS)} it was "
            "given; use a store that keeps what it takes"
        )


def _check_conditional_writes(store: Store, key: str) -> None:
    """Refuse a store that would let a writer overwrite what another has written since it read."""
    for if_absent, tag in ((True, None), (False, "no version has this tag")):
        try:
            store.put(key, _WORDS, if_absent=if_absent, if_match=tag)
        except (ChangedError, ExistsError):
            continue
        raise FinalError(
            f"{store.url} overwrites an object against the condition of the write (If-Match, "
            "If-None-Match), by which one training at a time is let in; use a store that heeds them"
        )
