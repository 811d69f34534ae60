"""The callbacks of alerts: what they say, and where."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from aerotrain_airflow.steps.late_runs import report_failure, report_late

CONTEXT = {
    "dag_run": {"dag_id": "sales", "dag_run_id": "manual__2026-01-31T00:00:00+00:00/x"}
    | {"state": "running"},
    "deadline": {"id": "1", "deadline_time": "2026-01-31 02:00:00+00:00"},
}


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The messages that a chat gets, whose URL is the variable ``chat_webhook``."""
    messages: list[Any] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/x"
        monkeypatch.setenv("AIRFLOW_VAR_CHAT_WEBHOOK", url)
        yield messages
        server.shutdown()


def test_a_late_run_is_reported_with_a_link_also_to_a_chat(
    chat: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    text = asyncio.run(report_late(CONTEXT, webhook="chat_webhook"))
    assert "2026-01-31 02:00:00+00:00" in text
    link = "https://airflow.example/dags/sales/runs/manual__2026-01-31T00%3A00%3A00%2B00%3A00%2Fx"
    assert text.endswith(link)
    assert chat == [{"text": text}]
    assert asyncio.run(report_late(CONTEXT)) == text
    assert len(chat) == 1


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (
            {"exception": ValueError("accuracy is 0.4"), "ti": SimpleNamespace(task_id="evaluate")},
            "accuracy is 0.4\nevaluate of sales has failed in the run manual__1/x: ",
        ),
        ({"reason": "task_failure"}, "task_failure\nsales has failed in the run manual__1/x: "),
    ],
    ids=["of a task", "of a DAG"],
)
def test_a_failure_is_reported_with_its_reason_first_and_a_link_to_the_page(
    chat: list[Any], monkeypatch: pytest.MonkeyPatch, known: dict[str, Any], text: str
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    context = {"dag": SimpleNamespace(dag_id="sales"), "run_id": "manual__1/x", **known}
    link = "https://airflow.example/dags/sales/runs/manual__1%2Fx/plugin/training"
    assert report_failure(context, webhook="chat_webhook") == text + link
    assert chat == [{"text": text + link}]


def test_a_webhook_that_is_no_url_fails_and_does_not_show_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_CHAT_WEBHOOK", "file:///etc/passwd")
    with pytest.raises(ValueError, match="the variable 'chat_webhook' is no URL") as caught:
        asyncio.run(report_late(CONTEXT, webhook="chat_webhook"))
    assert "passwd" not in str(caught.value)
