"""Turns an Airflow connection into the environment variables by which a replica uses the store."""

import json
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from logging import getLogger
from typing import TYPE_CHECKING

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import path_segment
from aerotrain.launch.process.supervisor_client import passed
from aerotrain.store import Store, open_store
from aerotrain.store.local import write_whole
from aerotrain_airflow.settings import Settings, listed

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from botocore.credentials import Credentials, ReadOnlyCredentials

#: The variables by which boto3 finds a credential that it can refresh:
#: https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
_CHAIN = (
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_ROLE_*", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_*", "AWS_EC2_METADATA_*"),
    *("AWS_STS_*", "AWS_ENDPOINT_URL_STS"),
)

#: Seconds for which a session token is used that does not say when it ends, and the most that pass
#: until a token is replaced.
UNKNOWN, _LONGEST = 120.0, 600.0

_LOG = getLogger(__name__)


def store_environment(settings: Settings) -> dict[str, str]:
    """The AWS variables that give access to the store; none for a ``file://`` store.

    The names are botocore's:
    https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html

    Raises:
        FinalError: neither the connection nor this process has a credential.
    """
    if not settings.store.startswith("s3://"):
        return {}
    hook, credentials = _found(settings)
    return _location(hook) | _keys(credentials.get_frozen_credentials())


def store_of(url: str, settings: Settings) -> Store:
    """The store at ``url``, with a fresh credential: a long job outlives the first one."""
    return open_store(url, {**os.environ, **store_environment(settings)})


def replica_base_environment(settings: Settings) -> dict[str, str]:
    """The base environment of local replicas: the passed variables, and the store's credential.

    A session token ends, and replicas may run for longer. So they get what boto3 needs to refresh
    it, or the file of a ``CredentialFile``, which is kept up to date while this process runs.

    Raises:
        FinalError: neither the connection nor this process has a credential.
    """
    environment = passed(os.environ, listed(settings.pass_env))
    if not settings.store.startswith("s3://"):
        return environment
    from botocore.credentials import RefreshableCredentials

    hook, credentials = _found(settings)
    environment |= _location(hook)
    is_refreshed = isinstance(credentials, RefreshableCredentials) and credentials.method != "env"
    if is_refreshed and not hook.conn_config.role_arn:
        environment |= {name: value for name, value in os.environ.items() if _is_of_chain(name)}
        if profile := hook.conn_config.session_kwargs.get("profile_name"):
            environment["AWS_PROFILE"] = profile
        return environment
    if credentials.get_frozen_credentials().token:
        return environment | _credential_file(settings).environment
    return environment | _keys(credentials.get_frozen_credentials())


class CredentialFile:
    """A session token of a connection, in a file that boto3 reads again before the token ends.

    boto3 refreshes it by a command, which prints the file:
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html

    All tasks with this connection write the same file, so that a task which adopts the replicas of
    an earlier one goes on to write theirs. It is no longer written once it was removed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        folder = settings.scratch / "credentials" / path_segment(settings.store_conn_id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._token, self._profile = folder / "token.json", folder / "credentials"
        self._pause = self._write()
        profile = f'[default]\ncredential_process = cat "{self._token}"\n'
        write_whole(self._profile, lambda file: file.write(profile.encode()))
        threading.Thread(target=self._keep, name="credential", daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The variable by which boto3 finds it."""
        return {"AWS_SHARED_CREDENTIALS_FILE": str(self._profile)}

    def _keep(self) -> None:
        while self._token.exists():
            time.sleep(self._pause)
            try:
                self._pause = self._write()
            except Exception as error:  # noqa: BLE001 -- of any kind of connection, and passing
                _LOG.warning(
                    "the credential of the connection %r could not be read again, and is tried "
                    "again until replicas have lost theirs: %s",
                    self._settings.store_conn_id,
                    error,
                )

    def _write(self) -> float:
        """Write the present token; returns the seconds after which to do so again."""
        _, credentials = _found(self._settings)
        frozen = credentials.get_frozen_credentials()
        now = datetime.now(UTC)
        # botocore has no public name for it:
        # https://github.com/boto/botocore/blob/1.44.5/botocore/credentials.py
        ends = getattr(credentials, "_expiry_time", None) or now + timedelta(seconds=UNKNOWN)
        content = json.dumps(
            {
                "Version": 1,
                "AccessKeyId": frozen.access_key,
                "SecretAccessKey": frozen.secret_key,
                "SessionToken": frozen.token,
                "Expiration": ends.isoformat(),
            }
        )
        write_whole(self._token, lambda file: file.write(content.encode()))
        return min(_LONGEST, max(1.0, (ends - now).total_seconds() / 3))


@cache
def _credential_file(settings: Settings) -> CredentialFile:
    return CredentialFile(settings)


def _found(settings: Settings) -> tuple["AwsBaseHook", "Credentials"]:
    """The connection of the store, and the credential by it, or by this process without one."""
    # Imported when needed: it takes longer than all else that the parsing of a DAG file imports.
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

    hook = AwsBaseHook(aws_conn_id=settings.store_conn_id, client_type="s3")
    credentials = hook.get_session().get_credentials()
    if credentials is None:
        raise FinalError(
            f"there is no credential for {settings.store}: make the AWS connection "
            f"{settings.store_conn_id!r}, or set [aerotrain] store_conn_id to the one that is there"
        )
    return hook, credentials


def _location(hook: "AwsBaseHook") -> dict[str, str]:
    found = {
        "AWS_ENDPOINT_URL": hook.conn_config.get_service_endpoint_url("s3"),
        "AWS_REGION": hook.region_name,
        "AWS_DEFAULT_REGION": hook.region_name,
    }
    return {name: value for name, value in found.items() if value}


def _keys(frozen: "ReadOnlyCredentials") -> dict[str, str]:
    from airflow.sdk.log import mask_secret

    found = {
        "AWS_ACCESS_KEY_ID": frozen.access_key,
        "AWS_SECRET_ACCESS_KEY": frozen.secret_key,
        "AWS_SESSION_TOKEN": frozen.token,
    }
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        if found[name]:
            mask_secret(found[name])
    return {name: value for name, value in found.items() if value}


def _is_of_chain(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _CHAIN)
