"""The numbered versions of a served model: who writes which, and which export has published one.

A try of an export claims the next number by putting ``claims/<version>.json`` where none is, and
writes to that version alone. No number is given out a second time, not even to the same export:
whether a try that stays away is dead or slow cannot be known. What a try that died has left costs
a number and nothing else. ``exports/<export>/<version>.json`` says which numbers an export has
claimed, so that a later try finds what an earlier one has published.
"""

import hashlib
import itertools
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from aerotrain.store import MANIFEST, ExistsError, Store

#: No number above 18 digits: TensorFlow Serving reads one as a signed integer of 64 bits.
_VERSION = "[1-9][0-9]{0,17}"
#: Keys that show that a number is taken: its claim, or anything in its folder.
_TAKEN = re.compile(rf"claims/({_VERSION})\.json|({_VERSION})/.*", re.DOTALL)


def claim_version(store: Store, export: Mapping[str, Any]) -> int:
    """A number above all that are taken, for this try of ``export`` alone.

    ``export`` says in JSON what is exported, the same in every try.
    """
    taken = [
        int(match[1] or match[2])
        for each in store.list()
        if (match := _TAKEN.fullmatch(each.key)) is not None
    ]
    # No two claims are alike: where an answer got lost, the store knows its own claim by its bytes.
    content = json.dumps({**export, "try": secrets.token_hex(8)}, sort_keys=True).encode()
    for version in itertools.count(max(taken, default=0) + 1):
        try:
            store.put(f"claims/{version}.json", content, if_absent=True)
        except ExistsError:
            continue  # another export was faster
        break
    store.put(f"{_folder(export)}/{version}.json", content)
    return version


def published_version(store: Store, export: Mapping[str, Any]) -> int | None:
    """The first version that a try of ``export`` has published whole; None where none has."""
    key = re.compile(rf"{_folder(export)}/({_VERSION})\.json")
    noted = (key.fullmatch(each.key) for each in store.list(_folder(export)))
    versions = sorted(int(match[1]) for match in noted if match is not None)
    return next((each for each in versions if store.exists(f"{each}/{MANIFEST}")), None)


def _folder(export: Mapping[str, Any]) -> str:
    description = json.dumps(export, sort_keys=True).encode()
    return f"exports/{hashlib.sha256(description).hexdigest()[:32]}"
