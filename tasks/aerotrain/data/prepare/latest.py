"""The pointer to the data set of a name that was finalized last: the baseline of drift."""

import json

from aerotrain.store import MissingError, Store


def _key(name: str) -> str:
    return f"latest/{name}.json"


def latest_of(root: Store, name: str) -> str | None:
    """The fingerprint of the data set of that name that was finalized last, if any."""
    try:
        fingerprint: str = json.loads(root.get(_key(name)))["fingerprint"]
    except MissingError:
        return None
    return fingerprint


def set_latest(root: Store, name: str, fingerprint: str) -> None:
    """Make this data set the baseline for later ones."""
    if latest_of(root, name) != fingerprint:
        root.put(_key(name), (json.dumps({"fingerprint": fingerprint}) + "\n").encode())
