"""To find out at once, and not after an hour of training, whether a store can be used."""

import uuid

from aerotrain.contract.errors import FinalError
from aerotrain.store.protocol import Store

_WORDS = b"aerotrain asks whether this store can be written and read\n"


def probe(store: Store) -> None:
    """Write, read and delete one tiny object.

    Raises:
        StoreUnavailable, StoreRefused, StoreFull, FinalError: as the store answered.
    """
    key = f"probe-{uuid.uuid4().hex}"
    store.put(key, _WORDS)
    try:
        read = store.get(key)
    finally:
        store.delete(key)
    if read != _WORDS:
        raise FinalError(
            f"{store.url} gave back {len(read)} other bytes than the {len(_WORDS)} it was "
            "given; use a store that keeps what it takes"
        )
