"""The images and docker-compose.yaml, as far as their files alone can be tested."""

import base64
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerotrain.supervisor import container

ROOT = Path(__file__).parent.parent
COMPOSE = ROOT / "docker-compose.yaml"
DOCKERFILES = sorted(ROOT.glob("images/*/Dockerfile"))

#: Name patterns of variables with secret values.
SECRET = re.compile(r"PASSWORD|SECRET|FERNET_KEY|TOKEN")

#: Variables that compose replaces: ${NAME}, ${NAME:-default}, ${NAME:?}.
VARIABLE = re.compile(r"\$\{(\w+)(:?[-?][^}]*)?\}")


def _services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return services


def _example() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    settings = [line for line in lines if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in settings)


def _instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """The name and the arguments of each instruction, with continued lines joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            yield name, arguments


def _stages(dockerfile: Path) -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name; the name is empty if the stage has none."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for name, arguments in _instructions(dockerfile):
        if name == "FROM":
            _, _, stage = arguments.partition(" AS ")
            stages[stage] = []
        if stages:
            stages[stage].append((name, arguments))
    return stages


@pytest.mark.parametrize("name", _services())
def test_every_service_is_watched_or_runs_once(name: str) -> None:
    service = _services()[name]
    if service["restart"] == "no":
        waited_for = [each.get("depends_on", {}).get(name) for each in _services().values()]
        assert {"condition": "service_completed_successfully"} in waited_for
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"]


def test_defaults_are_those_of_the_example() -> None:
    example, used = _example(), VARIABLE.findall(COMPOSE.read_text())
    assert {name for name, _ in used} == set(example) - {"COMPOSE_PROFILES"}
    for name, otherwise in used:
        expected = ":?" if SECRET.search(name) else f":-{example[name]}"
        assert otherwise == expected, name


def test_no_file_contains_a_secret() -> None:
    for name, value in _example().items():
        assert not (SECRET.search(name) and value), f"{name} has a value in .env.example"
    for service, description in _services().items():
        for name, value in description.get("environment", {}).items():
            if SECRET.search(name) and not name.endswith("STORE_SECRET"):  # the name of a Secret
                assert ":?}" in value or value.startswith("/"), f"{name} of {service}"
    passwords = re.findall(r'"(?:password|admin)": "([^"]*)"', COMPOSE.read_text())
    assert len(passwords) == 2
    assert all(VARIABLE.fullmatch(each) for each in passwords)
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.process
@pytest.mark.parametrize("missing", [None, "base64"])
def test_every_secret_of_a_new_env_file_is_there_and_differs(
    tmp_path: Path, missing: str | None
) -> None:
    for name in ("Makefile", ".env.example"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / "bin"  # those of a small system, which has no openssl
    tools.mkdir()
    for tool in {"make", "sh", "head", "base64", "tr"} - {missing}:
        (tools / tool).symlink_to(str(shutil.which(tool)))
    made = subprocess.run(
        ["make", "env"], cwd=tmp_path, env={"PATH": str(tools)}, check=False, capture_output=True
    )
    if missing:
        assert b"no secret could be made for POSTGRES_PASSWORD=" in made.stderr
        assert not (tmp_path / ".env").exists()
        return
    lines = (tmp_path / ".env").read_text().splitlines()
    values = [line.partition("=")[2] for line in lines if SECRET.search(line.partition("=")[0])]
    assert len(set(values)) == len(values) == 6
    assert {len(base64.urlsafe_b64decode(each)) for each in values} == {32}
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600


def test_only_this_machine_reaches_the_ports() -> None:
    for service in _services().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_replicas_in_a_container_that_is_stopped_have_time_to_save_checkpoints() -> None:
    service = _services()["scheduler-with-processes"]
    assert service["init"] is True, "it passes SIGTERM on"
    assert float(service["stop_grace_period"].removesuffix("s")) > container.GRACE + 5
    *_, script, _, python, flag, module, _, _ = service["command"]
    assert script.splitlines()[-1] == 'exec "$$@"', "a shell that waits would keep the signal"
    assert (python, flag, module) == ("python", "-m", container.__name__)


#: Stand for a replica, which has a session of its own and saves when it is preempted, and for
#: Airflow, which would record a failure, and ends when its input does.
REPLICA_PROGRAM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved", flush=True)))
print("ready", flush=True)
signal.pause()
"""
AIRFLOW_PROGRAM = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: print("its failure is recorded", flush=True))
subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
sys.stdin.read()
sys.exit(3)
"""


@pytest.mark.process
@pytest.mark.parametrize(("is_stopped", "exit_code"), [(True, 0), (False, 3)])
def test_the_end_of_a_container_preempts_replicas_and_fails_no_task(
    is_stopped: bool, exit_code: int
) -> None:
    airflow = [sys.executable, "-c", AIRFLOW_PROGRAM, REPLICA_PROGRAM]
    with subprocess.Popen(
        [sys.executable, "-m", container.__name__, *airflow],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if is_stopped:
            process.terminate()
        said, _ = process.communicate(timeout=240)  # this ends the input
        assert said == "saved\n"
    assert process.returncode == exit_code


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_no_image_runs_as_root(dockerfile: Path) -> None:
    stages = _stages(dockerfile)
    for name, instructions in stages.items():
        if not any(instruction == "CMD" for instruction, _ in instructions):
            continue
        (user,) = [arguments for instruction, arguments in instructions if instruction == "USER"]
        uid, _, _ = user.partition(":")
        assert uid.isdecimal(), "a cluster cannot tell that a name is not root's"
        assert int(uid) > 0, name


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_no_file_names_a_registry_of_images_or_packages(dockerfile: Path) -> None:
    """A mirror is configured where the build runs; the base has a pinned default."""
    text = dockerfile.read_text()
    assert not re.search(r"(?<!s3)://", text)
    assert "# syntax=" not in text
    assert not re.search(r"(?<!UV_DEFAULT_)(?<!PIP_)INDEX|--index|--extra-index|find-links", text)
    defaults = dict(
        arguments.split("=", 1)
        for name, arguments in _instructions(dockerfile)
        if name == "ARG" and "=" in arguments
    )
    known = {f"${{{name}}}" for name in defaults} | set(_stages(dockerfile))
    for name, arguments in _instructions(dockerfile):
        if name == "FROM":
            assert arguments.split()[0] in known
        for origin in re.findall(r"--from=(\S+)", arguments):
            assert origin in known
    assert re.fullmatch(r"python:3\.\d+-\S+", defaults["BASE"])
    assert defaults["BASE"] == _example()["BASE"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_every_package_is_checked_by_its_hash(dockerfile: Path) -> None:
    commands = [arguments for name, arguments in _instructions(dockerfile) if name == "RUN"]
    for command in commands:
        if "uv pip install" in command:
            assert "--require-hashes" in command
            assert "--no-deps" in command
        elif "pip install" in command:
            assert command.endswith("--require-hashes --requirement uv-requirements.lock")
    lock = (ROOT / "images/uv-requirements.lock").read_text()
    assert len(re.findall("^uv==", lock, re.M)) == 1
    assert "--hash=sha256:" in lock


def test_the_gpu_image_has_the_same_package_versions_as_the_others() -> None:
    ours, gpus = (_locked("requirements.lock"), _locked("images/training/gpu/requirements.lock"))
    assert gpus["tensorflow"] == ours["tensorflow-cpu"]
    assert {name: gpus[name] for name in ours.keys() & gpus} == {
        name: ours[name] for name in ours.keys() & gpus
    }


def test_both_locks_hold_all_that_the_code_of_a_replica_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[<>=\[]", each)[0] for each in extras["optional-dependencies"]["tensorflow"]
    }
    for lock in ("requirements.lock", "images/training/gpu/requirements.lock"):
        assert wanted <= _locked(lock).keys(), lock


def _locked(lock: str) -> dict[str, set[str]]:
    """The versions of each package in a lock; several if they depend on the Python version."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^(\S+)==([^ \\]+)", (ROOT / lock).read_text(), re.M):
        found.setdefault(name, set()).add(version)
    return found
