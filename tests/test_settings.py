"""The administrator's settings: what a run may not override, and what replicas inherit."""

from dataclasses import fields
from pathlib import Path

import pytest
from airflow.providers_manager import ProvidersManager

from aerotrain.contract.errors import FinalError
from aerotrain.launch.process.supervisor_client import passed
from aerotrain.supervisor.fork_rules import _READ_BY_IMPORTS, NEVER_WITH
from aerotrain_airflow.operators.credentials import replica_base_environment
from aerotrain_airflow.settings import Settings

#: Variables with secrets, as they are found in the environment of a worker.
SECRETS = (
    *("VAULT_TOKEN", "POSTGRES_PASSWORD", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"),
    *("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_STORE", "TF_VAR_password", "TF_TOKEN_host"),
    *("HOMEBREW_GITHUB_API_TOKEN", "NVIDIA_API_KEY", "PATH_TO_SECRETS"),
)


def test_a_run_cannot_choose_a_launcher_that_the_administrator_does_not_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__LAUNCHER", "kubernetes")
    with pytest.raises(FinalError, match="'process', and this Airflow allows kubernetes; "):
        Settings.read("process")
    assert Settings.read().launcher == Settings.read("kubernetes").launcher == "kubernetes"
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__ALLOWED_LAUNCHERS", "process, kubernetes")
    assert Settings.read("process").launcher == "process"


@pytest.mark.parametrize("prices", ["0.05", "boss=1", "chief=cheap"])
def test_a_price_list_that_cannot_be_read_is_refused_with_an_example(
    prices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__CORE_PRICES", prices)
    with pytest.raises(FinalError, match=r"by role, such as chief=0\.05, worker=0\.015"):
        Settings.read()


def test_replicas_inherit_no_variable_that_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", tmp_path.as_uri())
    for name in (*SECRETS, "WANDB_MODE", "TEAM_A", "TEAM_B", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "value")
    inherited = replica_base_environment(Settings.read())
    assert {"PATH", "HOME", "OMP_NUM_THREADS"} <= inherited.keys()
    assert not inherited.keys() & {*SECRETS, "WANDB_MODE", "TEAM_A"}

    monkeypatch.setenv("AIRFLOW__AEROTRAIN__PASS_ENV", "WANDB_MODE, TEAM_*")
    more = replica_base_environment(Settings.read())
    assert more.keys() - inherited.keys() == {"WANDB_MODE", "TEAM_A", "TEAM_B"}


@pytest.mark.parametrize("name", [*_READ_BY_IMPORTS, *NEVER_WITH])
def test_what_changes_an_import_or_a_device_is_inherited(name: str) -> None:
    variable = f"{name}X" if name.endswith("_") else name
    assert passed({variable: "1"}, ())


def test_airflow_lists_the_settings_and_their_defaults_as_those_of_a_provider() -> None:
    configs = dict(ProvidersManager().provider_configs)
    options = configs["aerotrain"]["aerotrain"]["options"]
    assert options.keys() == {each.name for each in fields(Settings)}
    assert (options["namespace"]["default"], options["store"]["default"]) == ("aerotrain", None)
    assert "s3://bucket/prefix" in options["store"]["description"]
