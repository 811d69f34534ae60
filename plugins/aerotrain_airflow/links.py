"""The links of a task in Airflow's UI: its output, the event log of a training, the statistics.

Airflow asks for them when the task has ended, in the task's own process.
"""

from functools import lru_cache
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink

from aerotrain.contract.event_log import RUN_LOG
from aerotrain.contract.job import prefix_of
from aerotrain.data.dataset import PAGE
from aerotrain_airflow.credentials import store_environment
from aerotrain_airflow.description import place_of
from aerotrain_airflow.settings import Settings

_CONSOLE = "https://s3.console.aws.amazon.com/s3/buckets"


class StoreLink(BaseOperatorLink):
    """A link to an object or a folder in the store."""

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        settings = Settings.read()
        url = self.url_of(operator, ti_key, settings)
        return browsable(url, _endpoint(settings)) if url else ""

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        """The URL in the store; empty if this task has no such object."""
        raise NotImplementedError


class OutputLink(StoreLink):
    """The folder of the task's output."""

    name = "Output"

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        return prefix_of(**place_of(operator, ti, settings)) + "/"


class EventLogLink(StoreLink):
    """The event log of a training: failures, restarts, checkpoints and the goodput."""

    name = "Event log"

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        if operator.job.get("module") != "aerotrain.train":
            return ""
        return f"{prefix_of(**place_of(operator, ti, settings))}/{RUN_LOG}"


class StatisticsLink(StoreLink):
    """The page of statistics of the data set that the task wrote or read."""

    name = "Statistics"

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        if operator.job.get("module") == "aerotrain.data.prepare.partition":
            return ""  # the page is written when all partitions are
        arguments = {**operator.job.get("arguments", {}), **operator.arguments}
        data = arguments.get("dataset") or arguments.get("data")
        return f"{data}/{PAGE}" if isinstance(data, str) and "://" in data else ""


def browsable(url: str, endpoint: str) -> str:
    """The address at which a browser finds ``url`` of a store; ``endpoint`` is that of S3.

    Without an endpoint it is AWS's console. Browsers do not follow a link from a page to a
    ``file://`` URL, but copy it.
    """
    scheme, _, path = url.partition("://")
    if scheme != "s3":
        return url
    if endpoint:
        return f"{endpoint.rstrip('/')}/{quote(path)}"
    bucket, _, key = path.partition("/")
    return f"{_CONSOLE}/{bucket}?prefix={quote(key, safe='')}"


@lru_cache
def _endpoint(settings: Settings) -> str:
    return store_environment(settings).get("AWS_ENDPOINT_URL", "")
