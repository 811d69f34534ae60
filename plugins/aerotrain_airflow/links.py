"""The links of a task in Airflow's UI: its output, the event log of a training, the statistics.

Airflow asks for them when the task has ended, in the task's own process.
"""

from collections.abc import Mapping
from functools import lru_cache
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.execution_time.xcom import XCom

from aerotrain.contract.event_log import RUN_LOG
from aerotrain.contract.gate import CARD
from aerotrain.contract.job import prefix_of
from aerotrain.data.dataset import PAGE
from aerotrain_airflow.credentials import store_environment
from aerotrain_airflow.description import place_of
from aerotrain_airflow.settings import Settings

#: The XCom with the id of the run whose result was taken over.
REUSED_FROM = "reused_from"

_CONSOLE = "https://s3.console.aws.amazon.com/s3/buckets"

#: How long a signed address is valid.
_SIGNED_SECONDS = 7 * 24 * 3600
_TEXT = "text/plain"


class StoreLink(BaseOperatorLink):
    """A link to an object or a folder in the store."""

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        settings = Settings.read()
        url = self.url_of(operator, ti_key, settings)
        return browsable(url, _variables(settings)) if url else ""

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        """The URL in the store; empty if this task has no such object."""
        raise NotImplementedError


class OutputLink(StoreLink):
    """The folder of the task's output."""

    name = "Output"

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        return prefix_of(**place_of(operator, ti, settings)) + "/"


class OutputFileLink(StoreLink):
    """A file in the output of every task that runs ``module``."""

    module: str
    key: str

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        if operator.job.get("module") != self.module:
            return ""
        return f"{prefix_of(**place_of(operator, ti, settings))}/{self.key}"


class EventLogLink(OutputFileLink):
    """The event log of a training: failures, restarts, checkpoints and the goodput."""

    name = "Event log"
    module, key = "aerotrain.train", RUN_LOG


class StatisticsLink(StoreLink):
    """The page of statistics of the data set that the task wrote or read."""

    name = "Statistics"

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        if operator.job.get("module") == "aerotrain.data.prepare.partition":
            return ""  # the page is written when all partitions are
        arguments = {**operator.job.get("arguments", {}), **operator.arguments}
        data = arguments.get("dataset") or arguments.get("data")
        return f"{data}/{PAGE}" if isinstance(data, str) and "://" in data else ""


class CardLink(OutputFileLink):
    """The card of an evaluation: the verdicts, and the metrics by slice."""

    name = "Card"
    module, key = "aerotrain.evaluate", CARD


class EarlierRunLink(BaseOperatorLink):
    """The run whose result this task has taken over."""

    name = "Earlier run"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        run = XCom.get_value(key=REUSED_FROM, ti_key=ti_key)
        return address_of_run(ti_key.dag_id, run) if run else ""


def address_of_run(dag_id: str, run_id: str) -> str:
    """The address of a DAG run in Airflow's UI."""
    base = conf.get("api", "base_url", fallback="/").rstrip("/")
    return f"{base}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}"


def browsable(url: str, variables: Mapping[str, str]) -> str:
    """The address at which a browser finds ``url`` of a store.

    ``variables`` are those by which clients use the store. At a server of one's own, an object gets
    a signed address, because a browser has no key. All who see the task can open it, for the
    seven days that S3 allows at most. Without a server it is AWS's console, which has a login.
    Browsers do not follow a link from a page to a ``file://`` URL, but copy it.
    """
    scheme, _, path = url.partition("://")
    if scheme != "s3":
        return url
    if endpoint := variables.get("AWS_ENDPOINT_URL"):
        address = f"{endpoint.rstrip('/')}/{quote(path)}"
        return address if path.endswith("/") else _signed(address, variables)
    bucket, _, key = path.partition("/")
    return f"{_CONSOLE}/{bucket}?prefix={quote(key, safe='')}"


def _signed(address: str, variables: Mapping[str, str]) -> str:
    """The address with a signature in its query, of AWS Signature Version 4."""
    from botocore.auth import S3SigV4QueryAuth  # only where it is used, as in credentials.py
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    key = Credentials(
        variables["AWS_ACCESS_KEY_ID"],
        variables["AWS_SECRET_ACCESS_KEY"],
        variables.get("AWS_SESSION_TOKEN"),
    )
    kind, _ = guess_type(address)  # otherwise the browser stores it
    request = AWSRequest("GET", f"{address}?response-content-type={quote(kind or _TEXT, safe='')}")
    region = variables.get("AWS_REGION", "us-east-1")
    S3SigV4QueryAuth(key, "s3", region, expires=_SIGNED_SECONDS).add_auth(request)
    return str(request.url)


@lru_cache
def _variables(settings: Settings) -> Mapping[str, str]:
    return store_environment(settings)
