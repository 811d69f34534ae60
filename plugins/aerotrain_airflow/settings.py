"""The administrator's settings: the ``[aerotrain]`` section of Airflow's configuration.

``store``               where pipelines keep data and models, ``s3://bucket`` or ``file:///folder``
``store_conn_id``       the AWS connection that reaches an ``s3://`` store (default ``store``)
``launcher``            where replicas run: ``process`` (default) or ``kubernetes``

For the launcher ``process``:

``scratch``             the folder of its replica groups
``warm_start``          whether replicas are forked from a process that has imported TensorFlow
                        (default ``True``)
``python``              the interpreter with aerotrain's ``tensorflow`` extra (default: Airflow's)

For the launcher ``kubernetes``:

``image``               the training image
``namespace``           where the pods run (default ``default``)
``kubernetes_conn_id``  the connection to the cluster (default ``kubernetes_default``)
``store_secret``        a Secret whose keys are the variables that reach the store, such as
                        ``AWS_ACCESS_KEY_ID``; without it pods rely on their service account
``service_account``     the account that the pods run as
``pod_template_file``   a pod in YAML, for anything else that pods of this cluster need
``queue``               ``kueue:NAME`` or ``volcano:NAME``, so that a job's pods are admitted as one

As environment variables: ``AIRFLOW__AEROTRAIN__STORE`` and so on.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from airflow.sdk.configuration import conf

from aerotrain.contract.errors import FinalError, nearest

_SECTION = "aerotrain"

_BACKENDS = Path(__file__).parent / "backends"

#: The launchers are the folders of ``backends``; the first is the default.
LAUNCHERS = sorted(
    (path.parent.name for path in _BACKENDS.glob("*/chosen.py")),
    key=lambda name: (name != "process", name),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The ``[aerotrain]`` section, read once per task."""

    store: str
    store_conn_id: str
    launcher: str
    scratch: Path
    warm_start: bool
    python: str
    image: str
    namespace: str
    kubernetes_conn_id: str
    store_secret: str
    service_account: str
    pod_template_file: str
    queue: str

    @classmethod
    def read(cls) -> "Settings":
        """The current settings; unset folders default to places next to the DAGs folder.

        Raises:
            FinalError: the store is not a URL, or the launcher does not exist.
        """
        home = Path(conf.get("core", "dags_folder")).resolve().parent
        store = conf.get(_SECTION, "store", fallback=(home / "store").as_uri())
        if not store.startswith(("s3://", "file:///")):
            raise FinalError(
                f"[aerotrain] store is {store!r}; write s3://bucket/prefix or file:///folder"
            )
        settings = cls(
            store=store.rstrip("/"),
            store_conn_id=conf.get(_SECTION, "store_conn_id", fallback="store"),
            launcher="process",
            scratch=Path(conf.get(_SECTION, "scratch", fallback=str(home / "scratch"))).resolve(),
            warm_start=conf.getboolean(_SECTION, "warm_start", fallback=True),
            python=conf.get(_SECTION, "python", fallback=sys.executable),
            image=conf.get(_SECTION, "image", fallback=""),
            namespace=conf.get(_SECTION, "namespace", fallback="default"),
            kubernetes_conn_id=conf.get(
                _SECTION, "kubernetes_conn_id", fallback="kubernetes_default"
            ),
            store_secret=conf.get(_SECTION, "store_secret", fallback=""),
            service_account=conf.get(_SECTION, "service_account", fallback=""),
            pod_template_file=conf.get(_SECTION, "pod_template_file", fallback=""),
            queue=conf.get(_SECTION, "queue", fallback=""),
        )
        return settings.with_launcher(conf.get(_SECTION, "launcher", fallback="process"))

    def with_launcher(self, launcher: str | None) -> "Settings":
        """These settings with another launcher, unless ``launcher`` is None.

        Raises:
            FinalError: the launcher does not exist.
        """
        if launcher is not None and launcher not in LAUNCHERS:
            raise FinalError(
                f"there is no launcher {launcher!r}{nearest(launcher, LAUNCHERS)}; "
                f"the launchers are {', '.join(LAUNCHERS)}"
            )
        return replace(self, launcher=launcher or self.launcher)
