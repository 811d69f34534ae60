"""The administrator's settings: the ``[aerotrain]`` section of Airflow's configuration.

As environment variables: ``AIRFLOW__AEROTRAIN__STORE`` and so on.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from aerotrain.contract.errors import FinalError
from aerotrain.contract.validation import Limits, Validated
from aerotrain_airflow.cost import price_list

#: The section of Airflow's configuration.
SECTION = "aerotrain"

#: The launchers (``choose_launcher``); the first is the default.
LAUNCHERS = ("process", "kubernetes")

_StoreUrl = Annotated[
    str, Limits(pattern="(s3://|file:///).*", form="s3://bucket/prefix or file:///folder")
]

_LauncherName = Annotated[str, Limits(choices=LAUNCHERS)]


def listed(names: str) -> list[str]:
    """The names of a setting that are separated by commas."""
    return [each.strip() for each in names.split(",") if each.strip()]


def _setting(description: str, default: str | bool | Callable[[Path], str] = "") -> Any:
    """A setting; a computed default gets the folder that contains the DAGs folder."""
    return field(metadata={"description": description, "default": default})


@dataclass(frozen=True, kw_only=True)
class Settings(Validated):
    """The ``[aerotrain]`` section, read once per task."""

    TITLE: ClassVar = "[aerotrain]"

    store: _StoreUrl = _setting(  # noqa: RUF009 -- it returns a field
        "The store of all pipelines: s3://bucket/prefix or file:///folder. Default: store next to "
        "the DAGs folder.",
        lambda home: (home / "store").as_uri(),
    )
    store_conn_id: str = _setting("The AWS connection for an s3:// store.", "store")
    launcher: _LauncherName = _setting(  # noqa: RUF009 -- as above
        f"Where replicas run: {', '.join(LAUNCHERS)}.", LAUNCHERS[0]
    )
    allowed_launchers: str = _setting(
        "Other launchers that a run may choose by its param `launcher`, separated by commas. "
        "With `process`, all who may trigger a run choose that its code runs on Airflow's worker."
    )
    mlflow: str = _setting(
        "The tracking URI of an MLflow server, such as http://mlflow:5000, where trainings and "
        "versions are recorded. It needs the extra mlflow. Default: none."
    )
    scratch: Path = _setting(  # noqa: RUF009 -- it returns a field
        "process: the folder of replica groups. Default: scratch next to the DAGs folder.",
        lambda home: str(home / "scratch"),
    )
    warm_start: bool = _setting(
        "process: whether replicas are forked from a process that has imported TensorFlow.",
        default=True,
    )
    python: str = _setting(
        "process: the interpreter with aerotrain's extra tensorflow. Default: Airflow's own.",
        lambda _home: sys.executable,
    )
    pass_env: str = _setting(
        "process: variables of Airflow's environment that replicas get in addition to those of "
        "`supervisor_client.py`, separated by commas; `*` stands for any characters."
    )
    image: str = _setting("kubernetes: the training image.")
    namespace: str = _setting("kubernetes: where the pods run.", "aerotrain")
    kubernetes_conn_id: str = _setting(
        "kubernetes: the connection to the cluster.", "kubernetes_default"
    )
    store_secret: str = _setting(
        "kubernetes: a Secret whose keys are the variables for the store, such as "
        "AWS_ACCESS_KEY_ID. Without it, pods rely on their service account."
    )
    service_account: str = _setting("kubernetes: the account that the pods run as.")
    pod_template_file: str = _setting(
        "kubernetes: a pod in YAML, for all else that pods of this cluster need."
    )
    queue: str = _setting("kubernetes: kueue:NAME, so that a job's pods are admitted as one.")
    core_prices: str = _setting(
        "The price of a core hour by role, such as `chief=0.05, worker=0.015`, in any currency: a "
        "run has a cost if each of its roles has a price."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        price_list(self.core_prices)

    @property
    def prices(self) -> dict[str, float]:
        """The price of a core hour, by role."""
        return price_list(self.core_prices)

    @classmethod
    def read(cls, launcher: str | None = None) -> "Settings":
        """The current settings, with another launcher if one is given.

        Raises:
            FinalError: the store is not a URL, or the launcher does not exist or is not allowed.
        """
        # Here, because Airflow reads the declarations above while it loads its configuration.
        from airflow.providers.common.compat.sdk import conf

        home = Path(conf.get("core", "dags_folder")).resolve().parent
        values: dict[str, Any] = {}
        for each in fields(cls):
            default = each.metadata["default"]
            if isinstance(default, bool):
                values[each.name] = conf.getboolean(SECTION, each.name, fallback=default)
            else:
                fallback = default(home) if callable(default) else default
                values[each.name] = conf.get(SECTION, each.name, fallback=fallback)
        allowed = {values["launcher"], *listed(values["allowed_launchers"])}
        values |= {
            "store": values["store"].rstrip("/"),
            "scratch": Path(values["scratch"]).resolve(),
            "launcher": values["launcher"] if launcher is None else launcher,
        }
        settings = cls(**values)
        if settings.launcher not in allowed:
            raise FinalError(
                f"this run asks for the launcher {settings.launcher!r}, and this Airflow allows "
                f"{', '.join(sorted(allowed))}; leave it out, or have the administrator add it to "
                "[aerotrain] allowed_launchers"
            )
        return settings
