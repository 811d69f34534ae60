"""Changes of one small object by several writers at once, by compare-and-swap."""

from collections.abc import Callable

from aerotrain.store.errors import ChangedError, ExistsError, MissingError
from aerotrain.store.protocol import Store


def swap(store: Store, key: str, changed: Callable[[bytes | None], bytes | None]) -> None:
    """Replace an object by what ``changed`` makes of its content, which is None if it is missing.

    ``changed`` is called again with the new content if another writer was faster. If it returns
    None, nothing is written.
    """
    while True:
        content, tag = read_version(store, key)
        new = changed(content)
        if new is None:
            return
        try:
            store.put(key, new, if_absent=tag is None, if_match=tag)
        except (ChangedError, ExistsError):
            continue
        return


def read_version(store: Store, key: str) -> tuple[bytes | None, str | None]:
    """The content of an object and the tag of that version; None and None if it is missing."""
    while True:
        try:
            found = store.stat(key)
            return store.get_range(key, 0, found.size, found.etag), found.etag
        except MissingError:
            return None, None
        except ChangedError:
            continue
