"""A client of Airflow's REST API, with the few requests that this project needs."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx

from aerotrain.contract.errors import FinalError, TemporaryError
from devtools.home import USER

#: A busy server responds late: on two cores a training run leaves it little time.
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class AirflowApi:
    """Airflow's REST API at ``url``, as its only user.

    Raises:
        FinalError: Airflow rejected the request; the message is Airflow's.
        TemporaryError: it did not respond, or failed.
    """

    def __init__(self, url: str, password: str) -> None:
        self.url = url
        self._password = password
        # A proxy of the caller's environment must not be used for loopback.
        self._client = httpx.Client(base_url=f"{url}/api/v2", timeout=_TIMEOUT, trust_env=False)

    def is_ready(self) -> bool:
        """Whether the API server is up, has its tables, and is ready for tasks.

        The first request to the execution API takes 3 s. It is sent here, so that the first task
        does not have to wait for it.
        """
        try:
            health = self._client.get("/monitor/health").json()
            tasks = self._client.get(f"{self.url}/execution/health")
        except httpx.TransportError:
            return False
        return tasks.is_success and health["metadatabase"]["status"] == "healthy"

    def plugin(self, path: str) -> httpx.Response:
        """The answer of a plugin's route to the logged-in user."""
        return self._send("GET", f"{self.url}{path}")

    def parsed(self) -> dict[str, datetime]:
        """The time at which the DAG processor last parsed each DAG."""
        dags = self._ask("GET", "/dags", params={"limit": 100})["dags"]
        return {
            each["dag_id"]: datetime.fromisoformat(each["last_parsed_time"])
            for each in dags
            if each["last_parsed_time"]
        }

    def import_errors(self) -> dict[str, str]:
        """The traceback of each file under dags/ that cannot be imported."""
        errors = self._ask("GET", "/importErrors")["import_errors"]
        return {each["filename"]: each["stack_trace"] for each in errors}

    def tasks(self, dag: str) -> dict[str, list[str]]:
        """The tasks of the DAG, each with its downstream tasks."""
        tasks = self._ask("GET", f"/dags/{quote(dag)}/tasks")["tasks"]
        return {each["task_id"]: each["downstream_task_ids"] for each in tasks}

    def trigger(self, dag: str, conf: Mapping[str, Any], run_id: str | None = None) -> str:
        """Unpause the DAG and start a run; returns the run's id, by default one of Airflow's."""
        self._ask("PATCH", f"/dags/{quote(dag)}", json={"is_paused": False})
        body = {"logical_date": None, "conf": dict(conf), "dag_run_id": run_id}
        run = self._ask("POST", f"/dags/{quote(dag)}/dagRuns", json=body)
        return str(run["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        """The state of the run: queued, running, success or failed."""
        return str(self._ask("GET", _run(dag, run))["state"])

    def fail_run(self, dag: str, run: str) -> None:
        """Fail the run: its running tasks are stopped, and no later Airflow resumes it."""
        self._ask("PATCH", _run(dag, run), json={"state": "failed"})

    def fail_task(self, dag: str, run: str, task: str) -> None:
        """Mark the instance of an unmapped task as failed, as the button in the UI does."""
        self._ask("PATCH", _task(dag, run, task), json={"new_state": "failed"})

    def task_instances(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Every task instance of the run; mapped ones are listed separately."""
        found: list[dict[str, Any]] = []
        path = f"{_run(dag, run)}/taskInstances"
        while True:
            page = self._ask("GET", path, params={"limit": 100, "offset": len(found)})
            found += page["task_instances"]
            if not page["task_instances"] or len(found) >= page["total_entries"]:
                return found

    def log(
        self, instance: Mapping[str, Any], token: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """The events in the log of a task instance's last try, and the token of the next call.

        With the token of an earlier call, only what was logged since then.
        """
        task = _task(instance["dag_id"], instance["dag_run_id"], instance["task_id"])
        path = f"{task}/logs/{instance['try_number']}"
        params = {"map_index": instance["map_index"]} | ({"token": token} if token else {})
        answer = self._ask("GET", path, params=params, headers={"Accept": "application/json"})
        events = [each for each in answer["content"] if isinstance(each, dict)]
        return events, answer.get("continuation_token")

    def result(self, dag: str, run: str, task: str) -> Any:
        """The return value of an unmapped task; None if it has none."""
        response = self._send("GET", f"{_task(dag, run, task)}/xcomEntries/return_value")
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        return _checked(response)["value"]

    def _log_in(self) -> None:
        """Get a token, which is valid for a day."""
        credential = {"username": USER, "password": self._password}
        token = _checked(self._client.post(f"{self.url}/auth/token", json=credential))
        self._client.headers["Authorization"] = f"Bearer {token['access_token']}"

    def _ask(self, method: str, path: str, **request: Any) -> Any:
        return _checked(self._send(method, path, **request))

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            if "Authorization" not in self._client.headers:
                self._log_in()
            return self._client.request(method, path, **request)
        except httpx.TransportError as error:
            raise TemporaryError(
                f"Airflow's API server at {self.url} does not answer ({error}); "
                "its log is logs/api-server.log"
            ) from error


def _run(dag: str, run: str) -> str:
    return f"/dags/{quote(dag)}/dagRuns/{quote(run, safe='')}"


def _task(dag: str, run: str, task: str) -> str:
    return f"{_run(dag, run)}/taskInstances/{quote(task)}"


def _checked(response: httpx.Response) -> Any:
    if response.is_error:
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError):
            detail = response.text[:500]
        request = response.request
        kind = TemporaryError if response.is_server_error else FinalError
        raise kind(
            f"Airflow refused {request.method} {request.url.path} "
            f"({response.status_code}): {detail}"
        )
    return response.json()
