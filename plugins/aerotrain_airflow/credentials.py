"""Turns an Airflow connection into the environment variables by which a replica uses the store."""

import os

from aerotrain.contract.errors import FinalError
from aerotrain.launch.process.passed_variables import passed
from aerotrain.store import Store, open_store
from aerotrain_airflow.settings import Settings, listed


def store_environment(settings: Settings) -> dict[str, str]:
    """The AWS variables that give access to the store; none for a ``file://`` store.

    The names are botocore's:
    https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html

    Raises:
        FinalError: neither the connection nor this process has a credential.
    """
    if not settings.store.startswith("s3://"):
        return {}
    # Imported when needed: it takes longer than all else that the parsing of a DAG file imports.
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

    hook: AwsBaseHook = AwsBaseHook(aws_conn_id=settings.store_conn_id, client_type="s3")
    try:
        credentials = hook.get_credentials()
    except AttributeError as error:  # boto3 returned None, and the hook reads its attributes
        raise FinalError(
            f"there is no credential for {settings.store}: make the AWS connection "
            f"{settings.store_conn_id!r}, or set [aerotrain] store_conn_id to the one that is there"
        ) from error
    found = {
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.token,
        "AWS_ENDPOINT_URL": hook.conn_config.get_service_endpoint_url("s3"),
        "AWS_REGION": hook.region_name,
        "AWS_DEFAULT_REGION": hook.region_name,
    }
    return {name: value for name, value in found.items() if value}


def store_of(url: str, settings: Settings) -> Store:
    """The store at ``url``, with a fresh credential: a long job outlives the first one."""
    return open_store(url, {**os.environ, **store_environment(settings)})


def replica_base_environment(settings: Settings) -> dict[str, str]:
    """The base environment of local replicas: the passed variables, and the store's credential."""
    return passed(os.environ, listed(settings.pass_env)) | store_environment(settings)
