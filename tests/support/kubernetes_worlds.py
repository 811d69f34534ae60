"""Where the tests of pods run: against a double with local processes, or on a real cluster.

A test that takes the fixture ``world`` runs in both: always against the double and, marked
``cluster``, against the cluster that KUBECONFIG names. There the training image is
``AEROTRAIN_TEST_IMAGE``, and pods reach the S3 server of the tests at ``AEROTRAIN_TEST_HOST``, an
address of this machine (by default the one from which it reaches the cluster's API).
"""

import json
import os
import selectors
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes.client
import kubernetes.config
import kubernetes.utils
import pytest
import yaml

from aerotrain.contract.job import Job
from aerotrain.launch.launcher import Launcher
from aerotrain.store import open_store
from aerotrain.user_code import publish_code
from aerotrain_airflow.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.kubernetes.plan import PodSettings
from devtools.s3_server import S3Server
from support.kubernetes_double import KubernetesDouble
from support.waiting import wait_for

JOBS = Path(__file__).parents[1] / "jobs"
DEPLOY = Path(__file__).parents[2] / "deploy"
SECRET = "store"
CONN_ID = "kubernetes_tests"


#: For tests of what the double cannot show, or shows with imagined pods already.
on_a_cluster = pytest.mark.parametrize(
    "world", [pytest.param("cluster", marks=pytest.mark.cluster)], indirect=True
)

#: A job of one replica.
ALONE = [{"role": "chief"}]


def described(
    store: str, name: str = "job", replicas: list[dict[str, Any]] | None = None, **more: Any
) -> Job:
    """A job of ``pod_jobs``: chief, two workers and a ps unless ``replicas`` says otherwise."""
    small = {"cpu": 0.1, "memory": "256Mi"}
    roles = replicas or [*ALONE, {"role": "worker", "count": 2}, {"role": "ps"}]
    return Job.from_dict(
        {
            "name": name,
            "module": "pod_jobs",
            "store": store,
            "run": "run",
            "task": name,
            "strategy": "parameter_server" if len(roles) > 1 else "one_device",
            "replicas": [{"resources": small, **each} for each in roles],
            **more,
        }
    )


@dataclass
class World:
    """A namespace of one test's own, and a client of its API."""

    namespace: str
    image: str
    kubeconfig: Path
    core: kubernetes.client.CoreV1Api
    store: str
    double: KubernetesDouble | None = None

    def settings(self, **more: Any) -> PodSettings:
        return PodSettings(
            **{"namespace": self.namespace, "image": self.image, "store_secret": SECRET, **more}
        )

    def launcher(self, holder: str = "try-1", **settings: Any) -> Launcher[Any]:
        return Launcher(KubernetesBackend(self.settings(**settings), CONN_ID, holder))

    def job(self, **more: Any) -> Job:
        """A job of ``pod_jobs`` whose code and output are in the world's store."""
        return described(self.store, code=publish_code(open_store(self.store), JOBS), **more)

    def pods(self, name: str = "job") -> dict[str, kubernetes.client.V1Pod]:
        """The present pods of a job, by name."""
        found = self.core.list_namespaced_pod(
            self.namespace, label_selector=f"aerotrain/job={name}"
        )
        return {pod.metadata.name: pod for pod in found.items}


def eventually(what: Callable[[], Any]) -> Any:
    """Poll for a minute until ``what`` returns something true, and return that."""
    return wait_for("this", what, 60, every=0.1)


def quota_of(world: World) -> Any:
    return world.core.read_namespaced_resource_quota("few", world.namespace)


def grant(world: World) -> dict[str, Any]:
    """Apply the rights of deploy/ here; returns the kubeconfig of the account that has them."""
    client, account = world.core.api_client, {"metadata": {"name": "aerotrain-launcher"}}
    world.core.create_namespaced_service_account(world.namespace, account)
    for file in ("role.yaml", "rolebinding.yaml", "kueue.yaml"):
        text = (DEPLOY / file).read_text()
        here = text.replace("namespace: aerotrain\n", f"namespace: {world.namespace}\n")
        for manifest in yaml.safe_load_all(here):
            kubernetes.utils.create_from_dict(client, manifest)
    token = world.core.create_namespaced_service_account_token(
        "aerotrain-launcher", world.namespace, {"spec": {}}
    ).status.token
    config: dict[str, Any] = yaml.safe_load(world.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    return config


@contextmanager
def forwarded(host: str, port: int) -> Iterator[int]:
    """A port at ``host`` that forwards to ``port`` of loopback, so that pods reach only this."""
    listener = socket.create_server((host, 0))
    stopped = threading.Event()

    def pump(one: socket.socket, other: socket.socket) -> None:
        ways = {one: other, other: one}
        # A connection that is reset has ended, too: replicas are killed, and cut their connections.
        with suppress(ConnectionError), one, other, selectors.DefaultSelector() as selector:
            for each in ways:
                selector.register(each, selectors.EVENT_READ)
            while not stopped.is_set():
                for key, _ in selector.select(1):
                    read = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not read:
                        return
                    ways[key.fileobj].sendall(read)  # type: ignore[index]

    def accept() -> None:
        while not stopped.is_set():
            try:
                outside, _ = listener.accept()
            except OSError:
                return
            inside = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=pump, args=(outside, inside), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        stopped.set()
        listener.close()


def given(variable: str) -> str:
    """An environment variable that the tests on a real cluster need."""
    if variable not in os.environ:
        pytest.fail(
            f"{variable} is not set: tests on a real cluster need KUBECONFIG, and the name of a "
            "training image that its nodes have or can pull in AEROTRAIN_TEST_IMAGE",
            pytrace=False,
        )
    return os.environ[variable]


def address_towards(url: str) -> str:
    """The address of this machine from which it reaches the server at ``url``.

    An API on loopback belongs to a cluster in containers of this machine (kind, k3d), which reach
    this machine by its address in their network.
    """
    parts = urlsplit(url)
    for host in (parts.hostname or "", "192.0.2.1"):  # an address of no network: RFC 5737
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, parts.port or 443))
            address = str(probe.getsockname()[0])
        if not address.startswith("127."):
            break
    return address


def make_namespace(core: kubernetes.client.CoreV1Api, environment: dict[str, str]) -> str:
    """A namespace that enforces the restricted pod security standard, with the store's Secret."""
    name = f"aerotrain-test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    core.create_namespace({"metadata": {"name": name, "labels": labels}})
    core.create_namespaced_secret(name, {"metadata": {"name": SECRET}, "stringData": environment})
    return name


def person(kubeconfig: Path) -> kubernetes.client.CoreV1Api:
    """An official client that uses this kubeconfig."""
    client = kubernetes.config.new_client_from_config(str(kubeconfig))
    return kubernetes.client.CoreV1Api(client)


def connection(kubeconfig: Path) -> str:
    """An Airflow connection to the cluster of a kubeconfig, as JSON."""
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}})


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesDouble]:
    """A double of the API for this test session."""
    with KubernetesDouble(tmp_path_factory.mktemp("double")) as double:
        yield double


@contextmanager
def forwarded_to_pods(s3: S3Server) -> Iterator[dict[str, str]]:
    """The variables by which pods of the real cluster reach the S3 server."""
    host = os.environ.get("AEROTRAIN_TEST_HOST") or address_towards(
        person(Path(given("KUBECONFIG"))).api_client.configuration.host
    )
    with forwarded(host, s3.ports[-1]) as port:
        yield {**s3.environment, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}


@pytest.fixture(scope="session")
def environment_of_pods(s3: S3Server) -> Iterator[dict[str, str]]:
    with forwarded_to_pods(s3) as environment:
        yield environment


@pytest.fixture(
    params=[
        pytest.param("double", marks=pytest.mark.process),
        pytest.param("cluster", marks=pytest.mark.cluster),
    ]
)
def world(
    request: pytest.FixtureRequest, s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """The double, and the real cluster, each with a namespace of this test's own."""
    double: KubernetesDouble | None = None
    environment = dict(s3.environment)
    if request.param == "double":
        double = request.getfixturevalue("double")
        kubeconfig, image = Path(double.kubeconfig), "aerotrain-training:double"
    else:
        kubeconfig = Path(given("KUBECONFIG"))
        image = given("AEROTRAIN_TEST_IMAGE")
        environment = request.getfixturevalue("environment_of_pods")
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection(kubeconfig))
    core = person(kubeconfig)
    namespace = make_namespace(core, environment)
    yield World(namespace, image, kubeconfig, core, s3_url, double)
    core.delete_namespace(namespace)
