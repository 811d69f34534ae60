"""The links of a task in Airflow's UI: the event log of a training, the statistics, the card.

Airflow asks for them when the task has ended, in the task's own process.
"""

import re
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator, BaseOperatorLink

from aerotrain.contract.job import prefix_of
from aerotrain.contract.layout import CARD, PAGE, RUN_LOG, path_segment
from aerotrain_airflow.operators.description import place_of
from aerotrain_airflow.settings import Settings

#: Where Airflow's API server has the application of the run page.
PREFIX = "/aerotrain"
#: Where Airflow's UI shows the page of models.
MODELS = "/plugin/models"
#: The view of a run that has the page, below the address of the run.
PAGE_ROUTE = "training"


class StoreLink(BaseOperatorLink):
    """A link to an object in the store."""

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        settings = Settings.read()
        url = self.url_of(operator, ti_key, settings)
        return browsable(url, ti_key.dag_id, settings) if url else ""

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        """The URL in the store; empty if this task has no such object."""
        raise NotImplementedError


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
    module, key = "aerotrain.training.train", RUN_LOG


class CardLink(OutputFileLink):
    """The card of an evaluation: the verdicts, and the metrics by slice."""

    name = "Card"
    module, key = "aerotrain.evaluation.evaluate", CARD


class StatisticsLink(StoreLink):
    """The page of statistics of the data set that the task wrote or read."""

    name = "Statistics"

    def url_of(self, operator: Any, ti: Any, settings: Settings) -> str:
        if operator.job.get("module") == "aerotrain.data.prepare.partition":
            return ""  # the page is written when all partitions are
        arguments = {**operator.job.get("arguments", {}), **operator.arguments}
        data = arguments.get("output") or arguments.get("data")
        return f"{data}/{PAGE}" if isinstance(data, str) and "://" in data else ""


def address_of_run(dag_id: str, run_id: str) -> str:
    """The address of a DAG run in Airflow's UI."""
    return f"{base_url()}/dags/{quote(dag_id)}/runs/{quote(run_id, safe='')}"


def browsable(url: str, dag_id: str, settings: Settings) -> str:
    """The address at which a browser finds ``url``.

    Airflow's API server shows what is in the store of the DAG's pipeline, to those who may read the
    task instances of the DAG (``run_page/app.py``). Any other URL is returned as it is.
    """
    pipeline = f"{settings.store}/{path_segment(dag_id)}/"
    if not url.startswith(pipeline):
        return url
    return f"{base_url()}{PREFIX}/files/{quote(dag_id)}/{quote(url.removeprefix(pipeline))}"


def with_addresses(text: str, dag_id: str, settings: Settings) -> str:
    """A message, and the addresses at which a browser finds the files of the store that it names.

    Airflow's log shows these as links. It has none of its own of ``s3://``.
    """
    if not base_url():
        return text
    store = re.escape(f"{settings.store}/{path_segment(dag_id)}/")
    urls = dict.fromkeys(re.findall(rf"{store}[^\s,;:'\")]+", text))
    files = [url.rstrip(".") for url in urls if not url.endswith(("/", "/."))]
    shown = [f"\n{browsable(url, dag_id, settings)}" for url in files]
    return f"{text}\nin a browser:{''.join(shown)}" if shown else text


def base_url() -> str:
    """The address of Airflow's UI without a slash at its end; empty if it is not set."""
    return str(conf.get("api", "base_url", fallback="")).rstrip("/")
