"""The environment of a local Airflow: each setting that differs from Airflow's default, and why."""

import json
import os
from collections.abc import Mapping
from configparser import ConfigParser
from io import StringIO
from pathlib import Path

from devtools.home import USER, Home, Secrets

BUCKET = "aerotrain"
HOST = "127.0.0.1"

#: The port of the UI of ``make up``, if no other is given.
PORT = 8080

#: An environment variable of every process that a local Airflow starts, replicas included. Its
#: value is the home; by it the processes are found, even if their parent has ended.
MARK = "AEROTRAIN_LOCAL"

#: Set in the environment of the servers that Airflow and the replicas use, which end last.
SERVER = "AEROTRAIN_LOCAL_SERVER"

#: The setting of Airflow's database.
DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

_PASS_ENV = "AIRFLOW__AEROTRAIN__PASS_ENV"

#: Settings of another Airflow, which would make this one use other DAGs or another file.
_NOT_INHERITED = ("AIRFLOW_CONFIG", "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST")


def base_url(port: int) -> str:
    """The address of the API server and the UI."""
    return f"http://{HOST}:{port}"


def component_environment(
    home: Home,
    project: Path,
    port: int,
    secrets: Secrets,
    inherited: Mapping[str, str],
    database: str,
) -> dict[str, str]:
    """All variables of Airflow's components, for the clone at ``project``.

    Settings of the caller (``AIRFLOW__SECTION__KEY``) override those that are only tuning, and the
    address of the database. They do not override those that tie this Airflow to its home, because
    settings of another Airflow in the shell must not mix with it.
    """
    return {
        DATABASE: database,
        **_tuning(os.cpu_count() or 1),
        **{name: value for name, value in inherited.items() if name not in _NOT_INHERITED},
        **_identity(home, project, port, secrets, inherited),
        # Airflow itself uses what is deprecated, and shows it at the start of each task's log.
        "PYTHONWARNINGS": "ignore:GitWildMatchPattern:DeprecationWarning",
        "PYTHONPATH": os.pathsep.join(
            [str(project / "tasks"), str(project / "plugins"), inherited.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep),
    }


def config_text(environment: Mapping[str, str]) -> str:
    """The settings among these variables as the text of an ``airflow.cfg``."""
    config = ConfigParser(interpolation=None)
    for name, value in environment.items():
        kind, *place = name.split("__", 2)
        if kind == "AIRFLOW" and len(place) == 2:
            section, key = (each.lower() for each in place)
            config.read_dict({section: {key: value.replace("%", "%%")}})
    text = StringIO()
    config.write(text)
    return text.getvalue()


def store_environment(endpoint: str, access_key: str, secret_key: str) -> dict[str, str]:
    """The variables by which tasks use the S3 server at ``endpoint``."""
    connection = {
        "conn_type": "aws",
        "login": access_key,
        "password": secret_key,
        "extra": {"endpoint_url": endpoint, "region_name": "us-east-1"},
    }
    return {
        "AIRFLOW_CONN_STORE": json.dumps(connection),
        "AIRFLOW__AEROTRAIN__STORE": f"s3://{BUCKET}",
        "AIRFLOW__AEROTRAIN__STORE_CONN_ID": "store",
    }


def _identity(
    home: Home, project: Path, port: int, secrets: Secrets, inherited: Mapping[str, str]
) -> dict[str, str]:
    return {
        MARK: str(home.root),
        # Without it a process that renames itself loses its environment in /proc, and so its mark.
        "SPT_NOENV": "1",
        "AIRFLOW_HOME": str(home.airflow),
        "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(project / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__FERNET_KEY": secrets.fernet_key,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home.passwords),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base_url(port)}/execution/",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": base_url(port),
        "AIRFLOW__API__SECRET_KEY": secrets.secret_key,
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.jwt_secret,
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home.airflow / "logs"),
        # All logs are on this disk. Airflow's log servers would listen on every interface, at fixed
        # ports that a second Airflow could not use, so none is started. With an empty host name
        # (the result of str()) the API server sends no request to one for a running task.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "builtins.str",
        "AIRFLOW__AEROTRAIN__SCRATCH": str(home.scratch),
        _PASS_ENV: ",".join(filter(None, (MARK, inherited.get(_PASS_ENV)))),
    }


def _tuning(cores: int) -> dict[str, str]:
    return {
        # The API server's event loop waits for a connection of the pool, which has 15 by default,
        # and requests that have one wait for the event loop: some 15 requests at once stopped all
        # of them for two minutes. Connections beyond the size of the pool are closed after use.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "-1",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE": "20",
        # The executor forks all of its workers at its start, and each task adds more processes.
        "AIRFLOW__CORE__PARALLELISM": str(max(4, 2 * cores)),
        # Between two tasks the scheduler sleeps up to this long (1 s by default), which is half of
        # the cost of a task here. An idle loop takes 10 ms.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        # How often a task repeats a request to the API server, five times within 15 s by default.
        # It would fail while that is started again, which takes a minute on a busy machine.
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "30",
        "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "5",
        # A task detects that it was killed at its next heartbeat (5 s by default), and must end its
        # replicas after that.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        # A task whose supervisor died is failed after this time (300 s by default).
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # The timeout above applies to tasks of a running scheduler. Tasks of a killed one are
        # searched at this interval (300 s by default), once it has sent no heartbeat for 30 s.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        # The delay until a new file in dags/ is read (300 s by default); an edited one is in 1 s.
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        # One parser is enough for a clone's few files, and leaves a core to the API server, which
        # takes the longest to start.
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # There is one user, and a second process would take another 200 MiB.
        "AIRFLOW__API__WORKERS": "1",
    }
