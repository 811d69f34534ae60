"""A complete Airflow from the command line: its output, and what it leaves behind."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.supervisor.ports import reserved_ports
from aerotrain.supervisor.processes import is_alive
from devtools import __main__ as devtools
from devtools.airflow_api import AirflowApi
from devtools.dag_run import how_to_look, in_order, later_addresses, run_once, state_of
from devtools.environment import DATABASE, MARK, SERVER, base_url, component_environment
from devtools.home import Home, Secrets, held, holder
from devtools.report import how_to_use
from devtools.stack import Stack, end_marked
from support.listening import listening
from support.waiting import wait_for

ROOT = Path(__file__).parent.parent

PIPELINE = '''
"""Three parts, and a training that does what the run asks for."""
import subprocess, time
from airflow.sdk import Param, dag, task

@dag(params={"training": Param("end", enum=["end", "fail", "hang"])}, schedule=None)
def small():
    @task
    def part(number):
        return number

    @task
    def train(parts, params):
        print("progress step=1 steps=2 loss=0.5 examples_per_second=10 seconds_left=1")
        if params["training"] == "fail":
            raise ValueError("the data are of yesterday")
        if params["training"] == "hang":
            subprocess.run(["sleep", "1000"], stdin=subprocess.DEVNULL, start_new_session=True)

    train(part.expand(number=[1, 2, 3]))

small()
'''

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone with one small pipeline, and this repository's code."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "small.py").write_text(PIPELINE)
    for root in ("tasks", "plugins"):
        (tmp_path / root).symlink_to(ROOT / root)
    return tmp_path


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Start a command of ``devtools`` in the project; no process may outlive it."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")
    }
    roots = (ROOT / "tasks", ROOT / "plugins", ROOT)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, roots))

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "devtools", *arguments],
            cwd=project,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    yield start
    left = processes_of(project)
    for process in left:
        process.kill()
    assert not left


def processes_of(project: Path) -> list[psutil.Process]:
    """Its processes, with ``info``: some of them may have ended before the caller looks at them."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        try:
            if process.environ().get(MARK, "").startswith(str(project)):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.process
def test_ctrl_c_in_the_middle_of_training_leaves_no_process(start: Start, project: Path) -> None:
    run = start("run", "--dag", "small", "--conf", '{"training": "hang"}')
    assert run.stdout is not None
    so_far = [run.stdout.readline()]
    while "progress step=1" not in so_far[-1]:
        so_far.append(run.stdout.readline())
        assert so_far[-1], so_far
    assert "sleep" in [process.info["name"] for process in processes_of(project)]

    second = start("run", "--dag", "small")
    assert "is using" in second.communicate()[0]
    assert second.returncode == 2

    run.send_signal(signal.SIGINT)
    said, _ = run.communicate()
    assert run.returncode == 128 + signal.SIGINT
    assert "everything is stopped" in said
    assert processes_of(project) == []


@pytest.mark.process
def test_a_run_that_is_terminated_while_it_starts_leaves_no_process(
    start: Start, project: Path
) -> None:
    run = start("run", "--dag", "small")
    assert run.stdout is not None
    next(line for line in run.stdout if "starting" in line)
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 128 + signal.SIGTERM
    assert processes_of(project) == []


@pytest.mark.process
def test_up_prints_its_address_and_runs_pipelines_until_down(
    start: Start,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("devtools.stack._STRAGGLER_SECONDS", 1.0)
    home = Home(project / ".local")
    home.make()
    with reserved_ports(1) as ports:
        port = str(ports[0].number)
        up = start("up", "--port", port)
        said, _ = up.communicate()
        assert up.returncode == 0, said
    phases = [each.strip() for each in said.splitlines() if each.startswith("  ")]
    begin = [each.partition(" ")[0] for each in phases]
    assert begin == ["starting", "creating", "waiting", "starting"]
    words = said.split()
    url, password = words[words.index("open") + 1], words[words.index("/") + 1]
    titles = {" ".join(each.info["cmdline"]).strip() for each in processes_of(project)}
    assert {"airflow scheduler", "airflow triggerer", "airflow dag-processor"} <= titles
    kill_component(project, "scheduler")
    kill_component(project, "postgres")
    assert_a_run_that_fails_ends_with_its_error(url, password, project, capsys)

    found = listening(processes_of(project))
    assert found
    assert [address for address in found if not address.is_loopback] == []

    other = start("up", "--port", "65535")
    assert f"is already running at {url}" in other.communicate()[0]
    assert other.returncode == 2
    again, _ = start("up").communicate()
    assert f"already running.\nopen   {url}" in again
    for name in ("scheduler", "postgres"):
        assert f"{name} ended with SIGKILL and was started again" in again
    run, _ = start("run", "--dag", "small").communicate()
    assert "already running" in run

    server = holder(home)
    down, _ = start("down").communicate()
    assert server is not None
    assert not is_alive(server.pid)
    assert "scheduler ended with SIGKILL" in down
    assert down.endswith("Airflow is stopped.\n")
    assert processes_of(project) == []
    down, _ = start("down").communicate()
    assert down == "Airflow was not running.\n"


def kill_component(project: Path, name: str) -> None:
    """Kill a component, and wait until ``up`` has started it again and ended what is left of it."""

    log = str(Home(project / ".local").logs / f"{name}.log")

    def running() -> set[int]:
        """The process that leads a session with this log; its forks have it, too."""
        found = set()
        for each in processes_of(project):
            with suppress(OSError):  # it has just ended
                out = Path(f"/proc/{each.pid}/fd/1").readlink()
                if os.getsid(each.pid) == each.pid and str(out) == log:
                    found.add(each.pid)
        return found

    [pid] = running()
    os.kill(pid, signal.SIGKILL)
    wait_for(f"another {name}", lambda: running() - {pid}, 30)
    wait_for(f"the end of the workers of {name}", lambda: not session(pid), 30)


def session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for each in psutil.pids():
        with suppress(ProcessLookupError):  # it has just ended
            if os.getsid(each) == leader:
                found.append(each)
    return found


def assert_a_run_that_fails_ends_with_its_error(
    url: str, password: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check the output of ``run``, on an Airflow that is up already."""
    long_ago = datetime.min.replace(tzinfo=UTC)
    api = AirflowApi(url, password)
    up = Stack(api=api, s3=None, components=[], since=long_ago)
    up.wait_for_api()
    up.wait_for_dag("small")
    with pytest.raises(FinalError, match=r"no DAG 'smal', did you mean 'small'\?; it has small"):
        up.wait_for_dag("smal")
    assert not run_once(
        up, Home(project / ".local"), "small", {"training": "fail"}, time.monotonic()
    )
    said = capsys.readouterr().out
    assert "task train failed; its log ends:\n" in said
    assert "error: the data are of yesterday\n" in said
    assert "\nthen open http://127.0.0.1:8080/dags/small/runs/manual__" in said


#: Writes what it gets; as a replica, saves to the server when it is preempted.
SERVER_PROGRAM = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    print(server.accept()[0].recv(9).decode(), flush=True)
    server.accept()
"""
REPLICA_PROGRAM = """
import signal, socket, sys
def save(*_):
    socket.create_connection(("127.0.0.1", int(sys.argv[1]))).sendall(b"saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
signal.pause()
"""
TASK_PROGRAM = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("its failure is recorded", flush=True))
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.process
def test_what_is_stopped_saves_to_servers_that_are_still_there(tmp_path: Path) -> None:
    """And no task of Airflow sees the end of its replicas, so the next Airflow continues it."""
    mark = {MARK: str(tmp_path)}
    kinds = {
        SERVER_PROGRAM: mark | {SERVER: "s3", "AIRFLOW_HOME": "of the caller"},
        REPLICA_PROGRAM: mark,
        TASK_PROGRAM: mark | {"AIRFLOW_HOME": "here"},
    }
    with ExitStack() as exits:
        [port] = exits.enter_context(reserved_ports(1))
        server, replica, task = (
            exits.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, str(port.number)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for program, environment in kinds.items()
        )
        for each in (server, replica, task):
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        assert end_marked(tmp_path) == 3
        said = [each.stdout.read() for each in (server, task) if each.stdout is not None]
        assert said == ["saved\n", ""]


@pytest.mark.process
def test_a_process_that_supervises_a_task_is_ended_although_airflow_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its component has ended, and no user but root can read its environment."""
    program = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3).pid)"
    component = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    hidden = psutil.Process(int(component.communicate()[0]))
    readable = psutil.Process.environ

    def environ(process: psutil.Process) -> dict[str, str]:
        if process.pid == hidden.pid:
            raise psutil.AccessDenied(process.pid)
        return readable(process)

    monkeypatch.setattr(psutil.Process, "environ", environ)
    assert end_marked(tmp_path) == 0
    assert hidden.is_running()
    Home(tmp_path).sessions.write_text(f"{component.pid}\n")
    assert end_marked(tmp_path) == 1
    assert not is_alive(hidden.pid)


def test_a_disk_without_room_is_named_before_anything_starts_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, usage = Home(tmp_path), shutil.disk_usage(tmp_path)
    assert home.why_full() == ""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 * 2**20))
    with pytest.raises(FinalError, match=r"3 MiB are free in .*, and a local Airflow needs 200"):
        home.make()
    said = f"the disk of {tmp_path} is full: 3 MiB are free, .*free at least 200 MiB"
    assert re.match(said, home.why_full())


def test_the_home_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    Secrets.of(home)
    before = home.passwords.stat()
    monkeypatch.setattr(os, "geteuid", lambda: before.st_uid + 1)
    with held(home, "up", "http://127.0.0.1:1"), pytest.raises(FinalError, match="as that user"):
        devtools.up(home, tmp_path, None)
    assert home.passwords.stat() == before


@pytest.mark.process
def test_a_port_in_use_is_named_in_one_sentence_and_nothing_is_left(
    start: Start, project: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        up = start("up", "--port", str(port))
        said, _ = up.communicate()
    assert up.returncode == 2
    assert f"port {port} of 127.0.0.1 cannot be used (Address already in use)" in said
    assert not (project / ".local").exists()


def test_a_fresh_clone_says_what_it_installs_before_it_does(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    command = ["make", "--no-print-directory", ".venv/.ready", "UV=/bin/echo"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = [line.split(" ", 1)[0] for line in made.stdout.splitlines()]
    assert said == ["setting", "venv", "installing", "pip", "pip"]
    assert re.search(r"installing the \d{3} packages .* two minutes …\n", made.stdout)


def test_up_fails_where_another_port_is_asked_for_than_that_of_the_running_airflow(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "my data")
    home.make()
    with held(home, "up", base_url(8123)):
        for port in (None, 8123):
            assert devtools.up(home, tmp_path, port) == 0
            said = capfd.readouterr().out
            assert f"Airflow is already running.\nopen   {base_url(8123)}" in said
            assert f". '{home.s3}'" in said, "a path with a space is quoted for the shell"
        with pytest.raises(FinalError) as failed:
            devtools.up(home, tmp_path, 8124)
    assert str(failed.value) == (
        f"the Airflow of {home.root} is already running at {base_url(8123)}, so it is not at port "
        "8124; to move it: `make down`, then `make up PORT=8124`, and for a second one name "
        "another folder by HOME_DIR=FOLDER"
    )


@pytest.mark.parametrize("port", ["99999", "https"])
def test_a_port_that_does_not_exist_is_refused(
    port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["devtools", "up", f"--port={port}"])
    with pytest.raises(SystemExit, match="2"):
        devtools.main()
    assert f"'{port}' is no port; use a number from 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "place"), [("run", "file"), ("up", "file/below")])
def test_a_home_that_cannot_be_a_folder_is_refused(
    command: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    with reserved_ports(1) as [port]:
        options = ["--port", str(port.number)] if command == "up" else []
    words = [command, *options, "--home", str(tmp_path / place)]
    monkeypatch.setattr("sys.argv", ["devtools", *words])
    assert devtools.main() == 2
    assert f"{place} cannot be the folder of a local Airflow: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.process
def test_a_conf_that_is_no_json_object_is_refused_before_anything_starts(start: Start) -> None:
    run = start("run", "--conf", "[3]")
    said, _ = run.communicate()
    assert run.returncode == 2
    assert "is no JSON" in said


def instance(task: str, state: str | None, index: int = -1, **dates: str) -> dict[str, Any]:
    dates = {"start_date": "", "end_date": ""} | dates
    return {"task_id": task, "state": state, "map_index": index, **dates}


NOW = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)
STARTED = "2026-01-01T12:00:00Z"
ENDED = "2026-01-01T12:00:04Z"


@pytest.mark.parametrize(
    ("instances", "state", "seconds"),
    [
        ([], "part", None),
        ([instance("part", "running", start_date=STARTED)], "part running", 10.0),
        (
            [instance("part", "success", start_date=STARTED, end_date=ENDED), instance("x", None)],
            "part success",
            4.0,
        ),
        (
            [
                instance("part", "success", 0, start_date=STARTED, end_date=ENDED),
                instance("part", "queued", 1),
            ],
            "part 1/2 queued",
            4.0,
        ),
        (
            [
                instance("part", "failed", 0, start_date=STARTED, end_date=ENDED),
                instance("part", "running", 1, start_date=STARTED),
            ],
            "part 1/2 failed",
            10.0,
        ),
    ],
)
def test_all_instances_of_a_task_are_shown_as_one(
    instances: list[dict[str, Any]], state: str, seconds: float | None
) -> None:
    assert state_of("part", instances, NOW) == (state, seconds)


def test_tasks_are_shown_in_the_order_of_their_dependencies() -> None:
    tasks = {"export": [], "evaluate": ["export"], "train": ["evaluate", "export"]}
    assert in_order(tasks) == ["train", "evaluate", "export"]


def test_the_callers_database_is_kept_and_folders_of_another_airflow_are_ignored(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    home.make()
    mine = {
        DATABASE: "postgresql://here/airflow",
        "AIRFLOW_HOME": "/elsewhere",
        "AIRFLOW__CORE__DAGS_FOLDER": "/elsewhere/dags",
    }
    environment = component_environment(home, ROOT, 8080, Secrets.of(home), mine, "sqlite:")
    assert environment[DATABASE] == "postgresql://here/airflow"
    assert environment["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == str(ROOT / "dags")


def test_secrets_are_stable_and_only_readable_by_this_user(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make()
    assert Secrets.of(home) == Secrets.of(home)
    for path in (home.root / "secrets.json", home.passwords):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(home.passwords.read_text()) == {"admin": Secrets.of(home).password}


def test_a_failed_run_says_how_to_look_at_it_after_its_airflow_was_stopped(tmp_path: Path) -> None:
    assert how_to_look(Home(tmp_path), "my.dag", "manual__2026-01-01T00:00:00+00:00") == (
        f"To look at the run, start it again: make up HOME_DIR={tmp_path}\n"
        "then open http://127.0.0.1:8080/dags/my.dag/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"
    )
    rejected = "in a browser:\nhttp://127.0.0.1:28299/aerotrain/files/my.dag/quarantine"
    assert later_addresses(rejected, "http://127.0.0.1:28299").endswith(
        "\nhttp://127.0.0.1:8080/aerotrain/files/my.dag/quarantine"
    )


def test_a_report_shows_how_to_load_the_model_and_to_ask_it() -> None:
    home = Home(Path.cwd() / ".local")
    said = "\n".join(how_to_use("digits", home))
    assert f'tf.saved_model.load("{home.root}/model")' in said
    assert said.splitlines()[-1].strip() == (
        f"make up && curl -d @{home.root}/model/assets.extra/request.json "
        f'"$(cat {home.root}/models.url)/digits:predict"'
    )
