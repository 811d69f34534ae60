"""What an administrator sets: the ``[aerotrain]`` section of Airflow's configuration.

``store``          where pipelines keep their data and models, ``s3://bucket`` or ``file:///folder``
``store_conn_id``  the AWS connection that reaches an ``s3://`` store (default ``store``)
``scratch``        the folder of the process launcher's sets
``python``         the interpreter that has aerotrain's ``tensorflow`` extra (default: Airflow's)

As environment variables: ``AIRFLOW__AEROTRAIN__STORE`` and so on.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk.configuration import conf

from aerotrain.contract.errors import FinalError

_SECTION = "aerotrain"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The ``[aerotrain]`` section, read once for a task."""

    store: str
    store_conn_id: str
    scratch: Path
    python: str

    @classmethod
    def read(cls) -> "Settings":
        """The settings in force; what is not set lies beside the DAGs folder.

        Raises:
            FinalError: the store is no URL.
        """
        home = Path(conf.get("core", "dags_folder")).resolve().parent
        store = conf.get(_SECTION, "store", fallback=(home / "store").as_uri())
        if not store.startswith(("s3://", "file:///")):
            raise FinalError(
                f"[aerotrain] store is {store!r}; write s3://bucket/prefix or file:///folder"
            )
        return cls(
            store=store.rstrip("/"),
            store_conn_id=conf.get(_SECTION, "store_conn_id", fallback="store"),
            scratch=Path(conf.get(_SECTION, "scratch", fallback=str(home / "scratch"))).resolve(),
            python=conf.get(_SECTION, "python", fallback=sys.executable),
        )
