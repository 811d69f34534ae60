"""One run of a DAG: triggered and followed over the REST API, and reported at its end."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError
from aerotrain.contract.status import Progress
from devtools.airflow_api import AirflowApi
from devtools.display import Display, in_order, task_rows
from devtools.environment import PORT, base_url
from devtools.home import Home
from devtools.report import collect
from devtools.stack import Stack

#: Seconds between two requests for the state of a run. The API takes about 20 ms for one.
_LOOK_EVERY = 0.5

#: Seconds after a restart in which others may end that depended on what was restarted.
_RESTART_SECONDS = 60.0

#: Marks of log groups that Airflow's UI folds.
_FOLDS = ("::group::", "::endgroup::")

#: The number of lines shown of a failed task's log.
_LAST_LINES = 20


def run_once(stack: Stack, home: Home, dag: str, conf: Mapping[str, Any], begin: float) -> bool:
    """Run the DAG once on a running stack, and report; returns whether it succeeded.

    ``begin`` is the start of the command, a time of ``time.monotonic()``.
    """
    api = stack.api
    with _failed_unless_ended(api, dag, api.trigger(dag, conf)) as run:
        print(f"{dag} was triggered after {time.monotonic() - begin:.1f} s", flush=True)
        state, training = _follow(stack, home, dag, run, Display())
    if state != "success":
        print(later_addresses(_why_failed(api, dag, run), api.url))
        print(
            f"{dag} failed, and this Airflow is stopped. {how_to_look(home, dag, run)}", flush=True
        )
        return False
    report = collect(
        api,
        stack.s3,
        home,
        dag=dag,
        run=run,
        seconds=time.monotonic() - begin,
        seconds_per_step=training.seconds_per_step,
    )
    print(f"\n{report}", flush=True)
    return True


def how_to_look(home: Home, dag: str, run: str) -> str:
    """How to look at a run in Airflow's UI after the Airflow of the home was stopped."""
    page = f"{base_url(PORT)}/dags/{quote(dag)}/runs/{quote(run, safe='')}"
    return f"To look at the run, start it again: make up{home.option}\nthen open {page}"


def later_addresses(text: str, url: str) -> str:
    """The text with addresses of the Airflow at ``url`` as they are after ``make up``."""
    return text.replace(url, base_url(PORT))


@contextmanager
def _failed_unless_ended(api: AirflowApi, dag: str, run: str) -> Iterator[str]:
    """Fail the run if it was not followed to its end; the next Airflow would resume it."""
    try:
        yield run
    except BaseException:  # usually Ctrl-C; raised again in any case
        print(f"stopping {dag} …", flush=True)
        with suppress(AerotrainError):  # the API server may have ended already
            api.fail_run(dag, run)
        raise


def _follow(
    stack: Stack, home: Home, dag: str, run: str, shown: Display
) -> tuple[str, "_Training"]:
    """Show the run until it has ended; returns its last state and the training progress.

    Raises:
        FinalError: the disk is full.
    """
    api, training = stack.api, _Training()
    tasks = in_order(api.tasks(dag))
    restarting_until = 0.0
    while True:
        if full := home.why_full():
            raise FinalError(full)
        if restarted := stack.restart_ended():
            for said in restarted:
                shown.say(said)
            stack.wait_for_api()
            restarting_until = time.monotonic() + _RESTART_SECONDS
        try:
            state = api.run_state(dag, run)  # read first: once it has ended, so have its tasks
            instances = api.task_instances(dag, run)
            training.read(api, instances)
        except TemporaryError:
            if not stack.has_ended and time.monotonic() > restarting_until:
                raise
        else:
            shown.show(task_rows(tasks, instances, datetime.now(UTC)), training.now)
            if state in ("success", "failed"):
                return state, training
        time.sleep(_LOOK_EVERY)


class _Training:
    """The progress lines of the training task, each with its time, read while it runs."""

    def __init__(self) -> None:
        self._first: tuple[datetime, Progress] | None = None
        self._last: tuple[datetime, Progress] | None = None
        self._tokens: dict[str, str | None] = {}

    def read(self, api: AirflowApi, instances: list[dict[str, Any]]) -> None:
        """Read new progress lines in the logs of the tasks that are running or have just ended."""
        for instance in instances:
            key = f"{instance['id']} {instance['try_number']}"
            running = instance["state"] == "running"
            if instance["map_index"] >= 0 or not (running or self._tokens.get(key)):
                continue
            events, token = api.log(instance, self._tokens.get(key))
            self._tokens[key] = token if running else None
            for event in events:
                progress = Progress.parse(str(event.get("event", "")))
                if progress is not None:
                    self._add(datetime.fromisoformat(event["timestamp"]), progress)

    def _add(self, at: datetime, progress: Progress) -> None:
        self._last = (at, progress)
        if self._first is None or progress.step < self._first[1].step:
            self._first = self._last

    @property
    def now(self) -> Progress | None:
        """The latest progress, or None once no steps are left."""
        if self._last is None or self._last[1].step >= self._last[1].steps:
            return None
        return self._last[1]

    @property
    def seconds_per_step(self) -> float | None:
        """The mean from the first progress line to the last; None if there are not two."""
        if self._first is None or self._last is None:
            return None
        (began, first), (ended, last) = self._first, self._last
        steps = last.step - first.step
        return (ended - began).total_seconds() / steps if steps > 0 else None


def _why_failed(api: AirflowApi, dag: str, run: str) -> str:
    """The end of the log and the error of every failed task instance."""
    failed = [each for each in api.task_instances(dag, run) if each["state"] == "failed"]
    return "\n".join(_end_of_log(api, instance) for instance in failed)


def _end_of_log(api: AirflowApi, instance: Mapping[str, Any]) -> str:
    name = instance["task_id"]
    if instance["map_index"] >= 0:
        name += f"[{instance['map_index']}]"
    events, _ = api.log(instance)
    errors = [detail["exc_value"] for event in events for detail in event.get("error_detail") or ()]
    lines = [str(event.get("event", json.dumps(event))) for event in events]
    last = [line for line in lines if not line.startswith(_FOLDS)][-_LAST_LINES:]
    shown = [f"task {name} failed; its log ends:", *(f"  {line}" for line in last)]
    if errors:
        shown.append(f"error: {errors[-1]}")
    return "\n".join(shown)
