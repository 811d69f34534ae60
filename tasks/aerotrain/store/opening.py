"""Open the store that a URL names."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.store.local import LocalStore
from aerotrain.store.protocol import Store

SCHEMES = ("file", "s3")


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
