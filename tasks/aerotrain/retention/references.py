"""What an item was made of: the items whose URLs are in its documents.

A URL refers to an item by its end, ``/PIPELINE/datasets/ID/…``. So it is also found in a store that
was copied, or that this machine has under another address.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import unquote

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import RESULT
from aerotrain.retention.contents import Item
from aerotrain.store import MissingError, Store

#: The fields of documents that name the model from which a training took its first values. What
#: that one was made of is not needed, or the first of a row of models would be kept for ever.
_STARTS = ("start_from", "started_from")


def references_of(
    store: Store, item: Item, known: Collection[str], *, with_results: bool
) -> dict[str, bool]:
    """The keys, among ``known``, of the items that ``item`` names.

    The value says whether what that item was made of is needed, too. ``with_results`` says whether
    the results of a run's jobs count: a later task of the run may read them.

    Raises:
        FinalError: a document is no JSON.
    """
    found: dict[str, bool] = {}
    for document in item.documents:
        if document.endswith(f"/{RESULT}") and not with_results:
            continue
        is_record = document.endswith("/started_from.json")
        for url, is_start in _strings(_read(store, document), is_record):
            key = _item_of(url, known)
            if key is not None and key != item.key:
                found[key] = found.get(key, False) or not is_start
    return found


def _read(store: Store, document: str) -> Any:
    try:
        return json.loads(store.get(document))
    except MissingError:
        return None  # it was just removed
    except ValueError as error:
        raise FinalError(
            f"{store.url}/{document} is no JSON ({error}), so that what it names cannot be kept: "
            "restore it, or delete it"
        ) from error


def _strings(value: Any, is_start: bool) -> Iterator[tuple[str, bool]]:
    """All strings in a JSON document, and whether each is in a field of ``_STARTS``."""
    if isinstance(value, str):
        yield value, is_start
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _strings(each, is_start or name in _STARTS)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, is_start)


def _item_of(url: str, known: Collection[str]) -> str | None:
    parts = unquote(url).split("/") if "://" in url else []
    for start in range(len(parts) - 2):
        if (key := "/".join(parts[start : start + 3])) in known:
            return key
    return None
