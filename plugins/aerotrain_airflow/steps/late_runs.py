"""A callback for Airflow's deadline alerts: says that a run is late, in the log and in a chat."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

from airflow.sdk import Variable

from aerotrain_airflow.operators.links import address_of_run

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


def _post(variable: str, text: str) -> None:
    url = Variable.get(variable)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the variable {variable!r} is no URL; write https://host/path")
    body = json.dumps({"text": text}).encode()
    request = Request(url, body, {"Content-Type": "application/json"})
    urlopen(request, timeout=_ANSWER_SECONDS).close()
