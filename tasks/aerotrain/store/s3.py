"""A store in a bucket, or a folder of one, behind any S3-compatible endpoint.

The error codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import ResponseParserError
from s3transfer.exceptions import RetriesExceededError

from aerotrain.contract.errors import AerotrainError, FinalError, SpecError
from aerotrain.store.errors import (
    ExistsError,
    MissingError,
    StoreRefused,
    StoreUnavailable,
    changed,
    replaced,
    store_error,
)
from aerotrain.store.local import write_whole
from aerotrain.store.protocol import StoredObject, checked_key, checked_prefix

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# Three attempts and the pauses between them (1 s and 2 s at most): an endpoint that drops
# packets is given up after 12 s, one that accepts them without an answer after 33 s. A busy store
# may need some seconds for an answer.
_ATTEMPTS = 3
_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 10.0

#: Connections that all threads of this process share, and keep open.
_CONNECTIONS = 32

#: Error codes that pass, whatever their HTTP status: of a credential that is renewed or a clock
#: that is set, of a body that was damaged on its way, and of a store with too much to do. Of all
#: others, the status decides: 401 and 403 are refused, 404 is missing, 409, 429 and 5xx pass.
_PASSING = frozenset(
    [
        "ExpiredToken",
        "ExpiredTokenException",
        "TokenRefreshRequired",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "IncompleteBody",
        "RequestTimeout",
        "RequestTimeoutException",
        "PriorRequestNotComplete",
        "OperationAborted",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "LimitExceededException",
        "TooManyRequestsException",
        "ProvisionedThroughputExceededException",
        "TransactionInProgressException",
    ]
)

#: The codes that botocore makes of a response to HEAD, which has no body and so no code.
_WITHOUT_BODY = frozenset({"400", "401", "403"})

#: The CRT client fails on endpoints that are an address and a port.
_TRANSFER = TransferConfig(preferred_transfer_client="classic")


def connect(environment: Mapping[str, str]) -> "S3Client":
    """A client with the credential and the endpoint of ``environment``; makes no connection.

    Raises:
        SpecError: AWS_ENDPOINT_URL is not a URL.
    """
    return _client(
        environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None,
        environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1",
        environment.get("AWS_ACCESS_KEY_ID"),
        environment.get("AWS_SECRET_ACCESS_KEY"),
        environment.get("AWS_SESSION_TOKEN"),
    )


@lru_cache(8)  # each client takes 0.1 s of CPU, and threads may share it; credentials expire
def _client(
    endpoint: str | None, region: str, key: str | None, secret: str | None, token: str | None
) -> "S3Client":
    session = boto3.session.Session(
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=token,
        region_name=region,
    )
    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_ANSWER_SECONDS,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        # Other endpoints than AWS rarely have a host name for each bucket, and may not support
        # AWS's newer checksums; ours are in the manifests.
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return session.client("s3", endpoint_url=endpoint, config=config)
    except ValueError as error:
        raise SpecError(
            f"AWS_ENDPOINT_URL is {endpoint!r}, which is not a URL; write http://host:port"
        ) from error


#: A forked process makes connections of its own.
os.register_at_fork(after_in_child=_client.cache_clear)


class S3Store:
    """The store of the folder ``prefix`` in ``bucket``; safe to use from many threads."""

    def __init__(self, client: "S3Client", bucket: str, prefix: str = "") -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = checked_prefix(prefix)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, key: str) -> bytes:
        with self._explaining(key) as full:
            return self._client.get_object(Bucket=self._bucket, Key=full)["Body"].read()

    def get_range(self, key: str, start: int, end: int, etag: str) -> bytes:
        if end <= start:
            return b""
        with self._explaining(key) as full:
            try:
                answer = self._client.get_object(
                    Bucket=self._bucket,
                    Key=full,
                    Range=f"bytes={start}-{end - 1}",
                    IfMatch=f'"{etag}"',
                )
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status == HTTPStatus.PRECONDITION_FAILED:
                    raise changed(f"{self.url}/{key}") from error
                if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return b""  # the range begins at the object's end
                raise
            # Not every S3 server supports conditional reads.
            if answer["ETag"].strip('"') != etag:
                raise changed(f"{self.url}/{key}")
            return answer["Body"].read()

    def stat(self, key: str) -> StoredObject:
        with self._explaining(key) as full:
            found = self._head(full)
        return StoredObject(
            key, found["ContentLength"], found["ETag"].strip('"'), found["LastModified"].timestamp()
        )

    def copy(self, source: str, key: str) -> None:
        with self._explaining(source) as old, self._explaining(key) as new:
            self._client.copy(
                {"Bucket": self._bucket, "Key": old}, self._bucket, new, Config=_TRANSFER
            )

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        conditions = {"IfNoneMatch": "*"} if if_absent else {}
        if if_match is not None:
            conditions["IfMatch"] = f'"{if_match}"'
        with self._explaining(key) as full:
            try:
                put: Any = self._client.put_object
                answer = put(Bucket=self._bucket, Key=full, Body=data, **conditions)
            except ClientError as error:
                # An earlier attempt whose response was lost may have written the object.
                answer = self._found(full, data) if _is_second_attempt(error) else None
                if answer is None and if_match is not None and _is_other_version(error):
                    raise replaced(f"{self.url}/{key}") from error
                if answer is None:
                    raise
        return str(answer["ETag"]).strip('"')

    def upload(self, path: Path, key: str) -> None:
        with self._explaining(key) as full, path.open("rb") as source:
            self._client.upload_fileobj(source, self._bucket, full, Config=_TRANSFER)

    def download(self, key: str, path: Path) -> None:
        with self._explaining(key) as full:
            write_whole(
                path,
                lambda file: self._client.download_fileobj(
                    self._bucket, full, file, Config=_TRANSFER
                ),
            )

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        folder = self._prefix + checked_prefix(prefix)
        pages = self._client.get_paginator("list_objects_v2")
        with self._translating(f"{self.url}/{prefix}"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=folder):
                for each in page.get("Contents", []):
                    key = each["Key"].removeprefix(self._prefix)
                    modified = each["LastModified"].timestamp()
                    yield StoredObject(key, each["Size"], each["ETag"].strip('"'), modified)

    def folders(self, prefix: str = "") -> Sequence[str]:
        folder = self._prefix + checked_prefix(prefix)
        pages = self._client.get_paginator("list_objects_v2")
        with self._translating(f"{self.url}/{prefix}"):
            return [
                each["Prefix"].removeprefix(folder).rstrip("/")
                for page in pages.paginate(Bucket=self._bucket, Prefix=folder, Delimiter="/")
                for each in page.get("CommonPrefixes", [])
            ]

    def exists(self, key: str) -> bool:
        try:
            with self._explaining(key) as full:
                self._head(full)
        except MissingError:
            return False
        return True

    def delete(self, key: str) -> None:
        with self._explaining(key) as full:
            self._client.delete_object(Bucket=self._bucket, Key=full)

    def child(self, prefix: str) -> "S3Store":
        return S3Store(self._client, self._bucket, self._prefix + checked_prefix(prefix))

    def _head(self, full: str) -> Any:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=full)
        except ClientError as error:
            if error.response["Error"].get("Code") not in _WITHOUT_BODY:
                raise
            # The same request with a body in its response says why.
            self._client.get_object(Bucket=self._bucket, Key=full)["Body"].close()
            return self._client.head_object(Bucket=self._bucket, Key=full)

    def _found(self, full: str, data: bytes) -> Any:
        """The endpoint's response for that object, if ``data`` is its content."""
        answer = self._client.get_object(Bucket=self._bucket, Key=full)
        return answer if answer["Body"].read() == data else None

    @contextmanager
    def _explaining(self, key: str) -> Iterator[str]:
        """The full key of ``key``; boto3's errors become errors of the store."""
        with self._translating(f"{self.url}/{key}"):
            yield self._prefix + checked_key(key)

    @contextmanager
    def _translating(self, url: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise self._answered(error, url) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StoreRefused(
                f"there is no credential for {url} ({error}); set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from error
        except (NoConnection, HTTPClientError, IncompleteReadError, RetriesExceededError) as error:
            raise StoreUnavailable(
                f"{self._endpoint} did not answer for {url} ({error}); check that it runs, "
                "and that AWS_ENDPOINT_URL is right"
            ) from error
        except (ChecksumError, FlexibleChecksumError, ResponseParserError) as error:
            raise StoreUnavailable(
                f"the response for {url} was damaged on its way ({error}); try again"
            ) from error
        except BotoCoreError as error:
            raise FinalError(f"{url} cannot be requested: {error}; correct the URL") from error
        except OSError as error:
            raise store_error(error, url) from error

    def _answered(self, error: ClientError, url: str) -> AerotrainError:
        """The error for the endpoint's response, by its HTTP status."""
        code = error.response["Error"].get("Code", "")
        said = f"{self._endpoint} answered {code}: {error.response['Error'].get('Message', '')}"
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if code in _PASSING or code == str(HTTPStatus.BAD_REQUEST.value):
            return StoreUnavailable(f"{url} was not served ({said}); try again")
        match status:
            case HTTPStatus.NOT_FOUND if code == "NoSuchBucket":
                return FinalError(
                    f"there is no bucket {self._bucket!r} at {self._endpoint}; create it, or "
                    "correct the store's URL"
                )
            case HTTPStatus.NOT_FOUND:
                return MissingError(
                    f"there is no {url}; check the URL, or the step that should write it"
                )
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                return StoreRefused(
                    f"access to {url} was denied ({said}); check AWS_ACCESS_KEY_ID, "
                    "AWS_SECRET_ACCESS_KEY and their permissions"
                )
            case HTTPStatus.PRECONDITION_FAILED:
                return ExistsError(f"{url} exists already; choose another key")
            case HTTPStatus.CONFLICT | HTTPStatus.TOO_MANY_REQUESTS:
                return StoreUnavailable(f"{url} is busy ({said}); try again")
        if status == HTTPStatus.NOT_IMPLEMENTED:
            return FinalError(
                f"this store does not support the request for {url} ({said}); use one with "
                "conditional writes"
            )
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return StoreUnavailable(
                f"{url} cannot be served now ({said}); see whether its disk is full, and try again"
            )
        return FinalError(f"{url} cannot be requested ({said}); correct the URL or the request")

    @property
    def _endpoint(self) -> str:
        return self._client.meta.endpoint_url


def _is_second_attempt(error: ClientError) -> bool:
    """Whether a condition failed on a retry, perhaps because the first attempt succeeded."""
    about = error.response["ResponseMetadata"]
    failed = about["HTTPStatusCode"] == HTTPStatus.PRECONDITION_FAILED
    return failed and about["RetryAttempts"] > 0


def _is_other_version(error: ClientError) -> bool:
    """Whether the object is missing, or of another version than the condition names."""
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    gone = error.response["Error"].get("Code") == "NoSuchKey"
    return gone or status == HTTPStatus.PRECONDITION_FAILED
