"""From a URL to the store that it names."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest
from aerotrain.store.local import LocalStore
from aerotrain.store.protocol import Store

SCHEMES = ("file", "s3")


def open_store(url: str, environment: Mapping[str, str] = os.environ) -> Store:
    """The store at ``s3://bucket/prefix`` or ``file:///folder``. Nothing is contacted yet.

    For S3, ``environment`` holds AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
    AWS_REGION and AWS_ENDPOINT_URL; what it lacks, boto3 looks for where it always does.

    Raises:
        SpecError: the URL names no store that we know.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise SpecError(
            f"{url!r} names no store{nearest(scheme, list(SCHEMES)) if separator else ''}; "
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
    # boto3 takes half a second to import, and a folder needs none of it.
    from aerotrain.store.s3 import S3Store, connect

    return S3Store(connect(environment), bucket, prefix)
