"""A task's log: an expected failure is one sentence, and a bug keeps its traceback."""

import json
import sys

import pytest
import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain_airflow.operators.task_try import translated


class Named(structlog.PrintLogger):
    """A logger with a name, as those of Airflow."""

    name = "airflow.providers.amazon.aws.utils.connection_wrapper.AwsConnectionWrapper"


@pytest.fixture
def processors():
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    )
    yield
    structlog.configure(**before)


def logged(capsys, error):
    """What Airflow writes about ``error``, raised within a task."""
    log = structlog.wrap_logger(structlog.PrintLogger(sys.stdout))
    try:
        with translated():
            raise error
    except Exception:  # as the task runner does
        log.exception("Task failed with exception")
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(FinalError("no such"), AirflowFailException), (TemporaryError("gone"), AirflowException)],
)
def test_an_expected_failure_is_one_sentence_without_a_traceback(processors, capsys, error, kind):
    with pytest.raises(kind, match=str(error)), translated():
        raise error
    assert logged(capsys, error) == {"event": str(error)}


def test_a_bug_keeps_its_traceback(processors, capsys):
    said = logged(capsys, ZeroDivisionError("a bug"))
    assert said["event"] == "Task failed with exception"
    assert said["exception"][0]["frames"]


def test_the_log_has_no_lines_about_the_connection_to_the_store(processors, capsys):
    with translated():
        structlog.wrap_logger(Named(sys.stdout)).info("credentials retrieved")
        structlog.wrap_logger(structlog.PrintLogger(sys.stdout)).info("news")
    assert capsys.readouterr().out == '{"event": "news"}\n'
