"""The environment of a local Airflow: every setting that differs from Airflow's own, and why."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from aerotrain_airflow.local.home import USER, Home, Secrets

BUCKET = "aerotrain"
HOST = "127.0.0.1"

#: In the environment of every process that a local Airflow starts, replicas included: its
#: home. By it they are found again, whichever parent they lost.
MARK = "AEROTRAIN_LOCAL"


#: Settings of another Airflow's that would point this one to other DAGs or another file.
_NOT_INHERITED = ("AIRFLOW_CONFIG", "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST")


def base_url(port: int) -> str:
    """Where the API server and the UI answer."""
    return f"http://{HOST}:{port}"


def component_environment(
    home: Home, project: Path, port: int, secrets: Secrets, inherited: Mapping[str, str]
) -> dict[str, str]:
    """All variables of Airflow's components, for the clone at ``project``.

    A setting of the caller's (``AIRFLOW__SECTION__KEY``) wins over what is only tuned here,
    a database in PostgreSQL for one. What makes this Airflow the one of this home does not
    give way: another Airflow's settings in the shell must not mix with it.
    """
    return {
        **_tuning(home, os.cpu_count() or 1),
        **{name: value for name, value in inherited.items() if name not in _NOT_INHERITED},
        **_identity(home, project, port, secrets),
        "PYTHONPATH": os.pathsep.join(
            [str(project / "tasks"), str(project / "plugins"), inherited.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep),
    }


def store_environment(endpoint: str, access_key: str, secret_key: str) -> dict[str, str]:
    """The variables by which tasks reach the S3 server at ``endpoint``."""
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


def _identity(home: Home, project: Path, port: int, secrets: Secrets) -> dict[str, str]:
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
        # Every log lies on this disk. Airflow's log servers would listen on every interface, at
        # ports that a second Airflow could not have, so none runs; and with no host name (what
        # str() returns) the API server does not ask for one at each look at a running task.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "builtins.str",
        "AIRFLOW__AEROTRAIN__SCRATCH": str(home.scratch),
    }


def _tuning(home: Home, cores: int) -> dict[str, str]:
    return {
        # SQLite waits 5 s for another writer by default; on a busy machine that is too short
        # and a task would fail with "database is locked". Airflow itself turns WAL on.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": (
            f"sqlite:///{home.airflow / 'airflow.db'}?timeout=60"
        ),
        # The executor forks all of its workers at its start; each task brings more processes.
        "AIRFLOW__CORE__PARALLELISM": str(max(4, 2 * cores)),
        # Between two tasks the scheduler sleeps up to this long (1 s by default): half of
        # what a task costs here. An idle turn takes 10 ms.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        # A task learns at its next heartbeat that it was killed (5 s by default), and must
        # end its replicas after that.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        # A task whose supervisor died is given up after so long (300 s by default).
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # That timeout holds for the tasks of a scheduler that lives. Those of one that was killed
        # are looked for so often (300 s by default), once it gave no sign for 30 s.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        # How soon a new file in dags/ shows up (300 s by default), and an edited one (30 s).
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
        # One parser is enough for a clone's few files, and leaves a core to the API server,
        # whose start takes the longest of all.
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # One user; a second process would take another 200 MiB.
        "AIRFLOW__API__WORKERS": "1",
    }
