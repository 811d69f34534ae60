"""Open the store that a URL names, and check before an hour of training that it can be used."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from aerotrain.contract.errors import FinalError, SpecError, nearest
from aerotrain.store.errors import ChangedError, ExistsError
from aerotrain.store.local import LocalStore
from aerotrain.store.protocol import Store

SCHEMES = ("file", "s3")

_WORDS = b"aerotrain checks that this store can be written and read\n"


def open_store(url: str, environment: Mapping[str, str] = os.environ) -> Store:
    """The store at ``s3://bucket/prefix`` or ``file:///folder``. No connection is made yet.

    For S3, ``environment`` holds AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
    AWS_REGION and AWS_ENDPOINT_URL; for what is not set, boto3 searches its usual places.

    Raises:
        SpecError: the URL is not that of a store.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise SpecError(
            f"{url!r} names no store{nearest(scheme, SCHEMES) if separator else ''}; "
            "write s3://bucket/prefix or file:///folder"
        )
    if scheme == "file":
        if not rest.startswith("/"):
            raise SpecError(
                f"{url!r} names a host or a relative folder; write file:///folder, "
                "with three slashes"
            )
        return LocalStore(Path(unquote(rest)))
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise SpecError(f"{url!r} names no bucket; write s3://bucket/prefix")
    # Importing boto3 takes half a second, and a folder does not need it.
    from aerotrain.store.s3 import S3Store, connect

    return S3Store(connect(environment), bucket, prefix)


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
