"""The numbered versions of a served model: who writes each, and which one an export has published.

An attempt of an export claims the next number by creating ``claims/<version>.json``, and writes to
that version only. No number is assigned a second time, not even to the same export, because an
attempt that does not return may be dead or just slow. The remains of a dead attempt cost a number
and nothing else. ``exports/<export>/<version>.json`` records the numbers that an export has
claimed, so that a later attempt finds what an earlier one has published.
"""

import hashlib
import itertools
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from aerotrain.store import MANIFEST, ExistsError, Store, StoredObject

#: Files of a version with requests: those that TensorFlow Serving warms up with, and the body of a
#: POST. See ``aerotrain.serving.requests``.
WARMUP = "assets.extra/tf_serving_warmup_requests"
BODY = "assets.extra/request.json"

#: The file of a version with the names of its classes. See ``aerotrain.serving.classes``.
CLASSES = "assets.extra/classes.json"

#: At most 18 digits: TensorFlow Serving reads a version as a signed integer of 64 bits.
_VERSION = "[1-9][0-9]{0,17}"
#: Keys that show that a number is taken: its claim, or anything in its folder.
_TAKEN = re.compile(rf"claims/({_VERSION})\.json|({_VERSION})/.*", re.DOTALL)


def claim_version(store: Store, export: Mapping[str, Any]) -> int:
    """Claim a number above all that are taken, for this attempt of ``export`` alone.

    ``export`` describes in JSON what is exported; it is the same in every attempt.
    """
    taken = [
        int(match[1] or match[2])
        for each in store.list()
        if (match := _TAKEN.fullmatch(each.key)) is not None
    ]
    # Each claim is unique, so that the store recognizes its own claim after a lost response.
    content = json.dumps({**export, "try": secrets.token_hex(8)}, sort_keys=True).encode()
    for version in itertools.count(max(taken, default=0) + 1):
        try:
            store.put(claim_key(version), content, if_absent=True)
        except ExistsError:
            continue  # another export was faster
        break
    store.put(f"{_folder(export)}/{version}.json", content)
    return version


def published_version(store: Store, export: Mapping[str, Any]) -> int | None:
    """The first version that an attempt of ``export`` has completely published, or None."""
    key = re.compile(rf"{_folder(export)}/({_VERSION})\.json")
    noted = (key.fullmatch(each.key) for each in store.list(_folder(export)))
    versions = sorted(int(match[1]) for match in noted if match is not None)
    return next((each for each in versions if store.exists(f"{each}/{MANIFEST}")), None)


def complete_versions(store: Store) -> dict[int, StoredObject]:
    """The numbers that are completely published, in rising order, and the manifest of each."""
    manifest = re.compile(rf"({_VERSION})/{re.escape(MANIFEST)}")
    found = ((manifest.fullmatch(each.key), each) for each in store.list())
    numbered = {int(match[1]): each for match, each in found if match is not None}
    return {number: numbered[number] for number in sorted(numbered)}


def claim_key(version: int) -> str:
    """The object that says which export of which run has claimed that number."""
    return f"claims/{version}.json"


def model_name(pipeline: str) -> str:
    """The name of the model that a pipeline serves: the last part of the URL of its store."""
    return pipeline.rstrip("/").rpartition("/")[2]


def _folder(export: Mapping[str, Any]) -> str:
    description = json.dumps(export, sort_keys=True).encode()
    return f"exports/{hashlib.sha256(description).hexdigest()[:32]}"
