"""Turns an Airflow connection into the environment variables by which a replica uses the store."""

import os
from fnmatch import fnmatchcase
from logging import getLogger

from aerotrain.contract.errors import FinalError
from aerotrain.launch.process.supervisor_client import passed
from aerotrain.store import Store, open_store
from aerotrain_airflow.settings import Settings, listed

#: The variables by which boto3 finds a credential that it can refresh:
#: https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
_CHAIN = (
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_ROLE_*", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_*", "AWS_EC2_METADATA_*"),
    *("AWS_STS_*", "AWS_ENDPOINT_URL_STS"),
)

_LOG = getLogger(__name__)


def store_environment(settings: Settings, *, for_replicas: bool = False) -> dict[str, str]:
    """The AWS variables that give access to the store; none for a ``file://`` store.

    The names are botocore's:
    https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html

    A session token ends, and replicas may run for longer. So they get what boto3 needs to refresh
    it where that can be passed on; otherwise a warning says when it ends.

    Raises:
        FinalError: neither the connection nor this process has a credential.
    """
    if not settings.store.startswith("s3://"):
        return {}
    # Imported when needed: it takes longer than all else that the parsing of a DAG file imports.
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from airflow.sdk.log import mask_secret
    from botocore.credentials import RefreshableCredentials

    hook: AwsBaseHook = AwsBaseHook(aws_conn_id=settings.store_conn_id, client_type="s3")
    credentials = hook.get_session().get_credentials()
    if credentials is None:
        raise FinalError(
            f"there is no credential for {settings.store}: make the AWS connection "
            f"{settings.store_conn_id!r}, or set [aerotrain] store_conn_id to the one that is there"
        )
    frozen = credentials.get_frozen_credentials()
    found = {
        "AWS_ENDPOINT_URL": hook.conn_config.get_service_endpoint_url("s3"),
        "AWS_REGION": hook.region_name,
        "AWS_DEFAULT_REGION": hook.region_name,
    }
    is_refreshed = isinstance(credentials, RefreshableCredentials) and credentials.method != "env"
    if for_replicas and is_refreshed and not hook.conn_config.role_arn:
        found |= {name: value for name, value in os.environ.items() if _is_of_chain(name)}
        if profile := hook.conn_config.session_kwargs.get("profile_name"):
            found["AWS_PROFILE"] = profile
    else:
        if for_replicas and frozen.token:
            _warn(settings, getattr(credentials, "_expiry_time", None))
        for secret in filter(None, (frozen.secret_key, frozen.token)):
            mask_secret(secret)
        found["AWS_ACCESS_KEY_ID"] = frozen.access_key
        found["AWS_SECRET_ACCESS_KEY"] = frozen.secret_key
        found["AWS_SESSION_TOKEN"] = frozen.token
    return {name: value for name, value in found.items() if value}


def _is_of_chain(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _CHAIN)


def _warn(settings: Settings, ends: object) -> None:
    """Say that replicas cannot refresh their session token. ``ends`` is a time, or None.

    botocore has no public name for it:
    https://github.com/boto/botocore/blob/1.44.5/botocore/credentials.py
    """
    _LOG.warning(
        "the credential of the connection %r is a session token, which replicas cannot refresh: "
        "once it ends, %s, nothing is saved any more; let boto3 find one that it refreshes (a "
        "role of the machine, a web identity, or a profile with a role_arn, as profile_name in "
        "the connection's extra), or use a key without a token",
        settings.store_conn_id,
        f"at {ends}" if ends else "at a time that it does not say",
    )


def store_of(url: str, settings: Settings) -> Store:
    """The store at ``url``, with a fresh credential: a long job outlives the first one."""
    return open_store(url, {**os.environ, **store_environment(settings)})


def replica_base_environment(settings: Settings) -> dict[str, str]:
    """The base environment of local replicas: the passed variables, and the store's credential."""
    more = store_environment(settings, for_replicas=True)
    return passed(os.environ, listed(settings.pass_env)) | more
