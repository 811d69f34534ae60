"""Callbacks of Airflow's alerts: say in the log and in a chat that a run is late, or has failed."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

from airflow.sdk import Variable

from aerotrain_airflow.operators.links import PAGE_ROUTE, address_of_run

_LOG = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0


async def report_late(context: Mapping[str, Any], webhook: str | None = None) -> str:
    """Log which run has missed its deadline, with a link to it; returns that sentence.

    ``webhook`` names an Airflow variable with a URL, to which ``{"text": …}`` is posted: Slack and
    Mattermost take it. Airflow calls this in the triggerer::

        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=timedelta(hours=2),
            callback=AsyncCallback(report_late, {"webhook": "chat_webhook"}),
        )

    Raises:
        ValueError: the variable is not an http:// or https:// URL.
        OSError: the URL did not accept the message.
    """
    run = context["dag_run"]
    link = address_of_run(run["dag_id"], run["dag_run_id"])
    text = (
        f"the run {run['dag_run_id']} of {run['dag_id']} is {run['state']} and has missed its "
        f"deadline, {context['deadline']['deadline_time']}: {link}"
    )
    _LOG.warning(text)
    if webhook is not None:
        await asyncio.to_thread(_post, webhook, text)
    return text


def report_failure(context: Mapping[str, Any], webhook: str | None = None) -> str:
    """Log why a task or a run has failed, with a link to its page; returns that message.

    It begins with the reason, which has a link to the card if the gate refused the model. The page
    is the view Training. ``webhook`` and errors are as for ``report_late``::

        default_args={"on_failure_callback": partial(report_failure, webhook="chat_webhook")}
    """
    dag, run, ti = context["dag"].dag_id, context["run_id"], context.get("ti")
    reason = context.get("exception") or context.get("reason") or "Airflow knows no reason"
    where = f"{ti.task_id} of {dag}" if ti is not None else dag
    page = f"{address_of_run(dag, run)}/plugin/{PAGE_ROUTE}"
    text = f"{reason}\n{where} has failed in the run {run}: {page}"
    _LOG.error(text)
    if webhook is not None:
        _post(webhook, text)
    return text


def _post(variable: str, text: str) -> None:
    url = Variable.get(variable)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the variable {variable!r} is no URL; write https://host/path")
    body = json.dumps({"text": text}).encode()
    request = Request(url, body, {"Content-Type": "application/json"})
    urlopen(request, timeout=_ANSWER_SECONDS).close()
