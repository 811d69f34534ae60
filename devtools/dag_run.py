"""One run of a DAG: triggered and followed over the REST API, shown line by line, and reported."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from textwrap import indent
from typing import Any
from urllib.parse import quote

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError
from aerotrain.contract.status import Progress
from devtools.airflow_api import AirflowApi
from devtools.environment import PORT, base_url
from devtools.home import Home
from devtools.report import report
from devtools.stack import Stack

#: Seconds between two requests for the state of a run. The API takes about 20 ms for one.
_LOOK_EVERY = 0.5

#: Seconds between two lines of training progress.
_LINE_EVERY = 5.0

#: Seconds after a restart in which others may end that depended on what was restarted.
_RESTART_SECONDS = 60.0

#: Marks of log groups that Airflow's UI folds.
_FOLDS = ("::group::", "::endgroup::")

#: The number of lines shown of a failed task's log.
_LAST_LINES = 20

#: The states of Airflow's task instances that have ended, and of those that are under way.
_ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
_UNDER_WAY = ("running", "deferred", "up_for_retry", "restarting", "queued", "scheduled")

#: The state of a mapped task is the first of these that one of its instances has.
_PRECEDENCE = ("failed", "upstream_failed", *_UNDER_WAY, "success", "skipped", "removed")


def run_once(stack: Stack, home: Home, dag: str, conf: Mapping[str, Any], begin: float) -> bool:
    """Run the DAG once on a running stack, and report; returns whether it succeeded.

    ``begin`` is the start of the command, a time of ``time.monotonic()``.
    """
    api = stack.api
    with _failed_unless_ended(api, dag, api.trigger(dag, conf)) as run:
        triggered = time.monotonic()
        print(f"{dag} was triggered after {triggered - begin:.1f} s", flush=True)
        state = _follow(stack, home, dag, run)
    if state != "success":
        print(later_addresses(_why_failed(api, dag, run), api.url))
        print(
            f"{dag} failed, and this Airflow is stopped. {how_to_look(home, dag, run)}", flush=True
        )
        return False
    took = time.monotonic() - triggered
    print(f"\n{dag} succeeded in {took:.0f} s (run {run}), {took + triggered - begin:.0f} s in all")
    print(report(api, stack.s3, home, dag, run), flush=True)
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


def _follow(stack: Stack, home: Home, dag: str, run: str) -> str:
    """Show the run until it has ended; returns its last state.

    Raises:
        FinalError: the disk is full.
    """
    api = stack.api
    display = _Display(api, in_order(api.tasks(dag)))
    restarting_until = 0.0
    while True:
        if full := home.why_full():
            raise FinalError(full)
        if restarted := stack.restart_ended():
            print("\n".join(restarted), flush=True)
            stack.wait_for_api()
            restarting_until = time.monotonic() + _RESTART_SECONDS
        try:
            state = api.run_state(dag, run)  # read first: once it has ended, so have its tasks
            display.show(api.task_instances(dag, run))
        except TemporaryError:
            if not stack.has_ended and time.monotonic() > restarting_until:
                raise
        else:
            if state in ("success", "failed"):
                return state
        time.sleep(_LOOK_EVERY)


class _Display:
    """Prints a line for every change of a task, and the progress of a training now and then."""

    def __init__(self, api: AirflowApi, tasks: Sequence[str]) -> None:
        self._api = api
        self._tasks = tasks
        self._shown: dict[str, str] = {}
        self._read: dict[str, str | None] = {}  # until where, the log of a task instance
        self._progress: dict[str, Progress] = {}  # by task, that is not shown yet
        self._line_due = 0.0

    def show(self, instances: Sequence[Mapping[str, Any]]) -> None:
        for task in self._tasks:
            state, seconds = state_of(task, instances, datetime.now(UTC))
            if self._shown.get(task, task) != state:
                self._shown[task] = state
                ended = seconds is not None and state.endswith(_ENDED)
                print(f"{state} ({seconds:.1f} s)" if ended else state, flush=True)
        self._read_progress(instances)
        if self._progress and time.monotonic() >= self._line_due:
            for task, progress in self._progress.items():
                print(f"{task} {progress}", flush=True)
            self._progress = {}
            self._line_due = time.monotonic() + _LINE_EVERY

    def _read_progress(self, instances: Sequence[Mapping[str, Any]]) -> None:
        """Read what tasks that run have logged since the last call."""
        unmapped = [each for each in instances if each["map_index"] < 0]
        running = {each["task_id"]: each for each in unmapped if each["state"] == "running"}
        self._progress = {task: each for task, each in self._progress.items() if task in running}
        for task, instance in running.items():
            key = f"{instance['id']} {instance['try_number']}"
            events, self._read[key] = self._api.log(instance, self._read.get(key))
            for event in events:
                if found := Progress.parse(str(event.get("event", ""))):
                    self._progress[task] = found


def in_order(tasks: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks in topological order; ``tasks`` maps each to its downstream tasks."""
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(tasks, ()))
    for task, followers in tasks.items():
        for follower in followers:
            sorter.add(follower, task)
    return list(sorter.static_order())


def state_of(
    task: str, instances: Sequence[Mapping[str, Any]], now: datetime
) -> tuple[str, float | None]:
    """A task with the state of all its instances, and the seconds since its start, if any.

    ``train running``, or ``prepare.partition 3/4 queued`` for a mapped task. ``instances`` are
    those of the run, as the REST API returns them.
    """
    own = [each for each in instances if each["task_id"] == task]
    states = [each["state"] for each in own]
    words = [task]
    if mapped := sum(each["map_index"] >= 0 for each in own):
        words.append(f"{sum(state in _ENDED for state in states)}/{mapped}")
    words += [state for state in _PRECEDENCE if state in states][:1]
    started = [each for each in own if each["start_date"]]
    begins = [datetime.fromisoformat(each["start_date"]) for each in started]
    ends = [
        datetime.fromisoformat(each["end_date"]) if each["end_date"] else now for each in started
    ]
    seconds = max(0.0, (max(ends) - min(begins)).total_seconds()) if started else None
    return " ".join(words), seconds


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
    shown = [f"task {name} failed; its log ends:", *(indent(line, "  ") for line in last)]
    return "\n".join([*shown, *(f"error: {error}" for error in errors[-1:])])
