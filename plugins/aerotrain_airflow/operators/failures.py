"""The two kinds of failure, as Airflow's exceptions, which end a task's log with one sentence."""

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from aerotrain.contract.errors import FinalError, TemporaryError

#: Writes a line for each use of an AWS connection, and there are several in a task.
_TALKATIVE = "airflow.providers.amazon.aws.utils.connection_wrapper"


class JobFailedError(AirflowFailException):
    """A retry would fail the same way, so Airflow makes none."""


class JobInterruptedError(AirflowException):
    """It failed for a temporary reason; Airflow's retries apply."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise Airflow's exceptions for the two kinds of error of this project.

    The task's log shows them without a traceback: the message says what happened and what to do.
    """
    processors = structlog.get_config()["processors"]
    if _without_noise not in processors:
        processors.insert(0, _without_noise)  # in place: the task's loggers have this very list
    try:
        yield
    except FinalError as error:
        raise JobFailedError(str(error)) from None
    except TemporaryError as error:
        raise JobInterruptedError(str(error)) from None


def _without_noise(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Drop lines about AWS connections; make an expected failure one sentence without traceback.

    A processor of structlog: https://www.structlog.org/en/stable/processors.html
    """
    if method == "info" and str(getattr(logger, "name", "")).startswith(_TALKATIVE):
        raise structlog.DropEvent
    error = sys.exc_info()[1]
    if event.get("exc_info") and isinstance(error, JobFailedError | JobInterruptedError):
        del event["exc_info"]
        event["event"] = f"Task failed: {error}"
    return event
