"""Which data set of a name was sealed last, to compare new data with."""

import json

from aerotrain.store import MissingError, Store


def _key(name: str) -> str:
    return f"latest/{name}.json"


def latest_of(root: Store, name: str) -> str | None:
    """The fingerprint of the data set of that name that was sealed last, if any was."""
    try:
        fingerprint: str = json.loads(root.get(_key(name)))["fingerprint"]
    except MissingError:
        return None
    return fingerprint


def set_latest(root: Store, name: str, fingerprint: str) -> None:
    """Let data that comes later be compared with this data set."""
    if latest_of(root, name) != fingerprint:
        root.put(_key(name), (json.dumps({"fingerprint": fingerprint}) + "\n").encode())
