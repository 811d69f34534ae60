"""The double of a Kubernetes cluster behaves as a real one does, towards a real client."""

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import psutil
import pytest
from kubernetes_asyncio.client import ApiClient, ApiException, CoreV1Api
from kubernetes_asyncio.config import load_kube_config
from kubernetes_asyncio.watch import Watch

from aerotrain.supervisor.processes import is_alive
from support.kubernetes_double import KubernetesDouble, statuses
from support.kubernetes_worlds import forwarded

Ask = Callable[[CoreV1Api], Awaitable[Any]]


@pytest.fixture
def cluster() -> Iterator[KubernetesDouble]:
    """A cluster whose pods are processes, unless a test imagines them."""
    with KubernetesDouble() as double:
        yield double


def ask(cluster: KubernetesDouble, question: Ask) -> Any:
    """The response as the client library parses it."""

    async def run() -> Any:
        await load_kube_config(config_file=str(cluster.kubeconfig))
        async with ApiClient() as api:
            return await question(CoreV1Api(api))

    return asyncio.run(run())


def pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "any", "command": list(command) or ["sleep", "60"]}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"set": "a"}},
        "spec": {"restartPolicy": "Never", "containers": containers, **spec},
    }


def state(manifest: dict[str, Any] | None) -> str:
    status = (manifest or {"status": {"phase": "absent"}})["status"]
    [container] = status.get("containerStatuses") or [{"state": {"none": {}}}]
    [name] = container["state"]
    return f"{status['phase']} {name}"


async def events(core: CoreV1Api, **query: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    async with Watch() as watch:
        stream = watch.stream(core.list_namespaced_pod, "default", timeout_seconds=10, **query)
        async for event in stream:
            yield event["type"], event["raw_object"]


@pytest.mark.process
def test_a_pod_is_a_process_with_the_states_of_a_real_cluster(
    cluster: KubernetesDouble,
) -> None:
    async def follow(core: CoreV1Api) -> list[str]:
        version = (await core.list_namespaced_pod("default")).metadata.resource_version
        script = "echo hello from $HOSTNAME; echo sorry > $AEROTRAIN_TERMINATION_LOG; exit 3"
        await core.create_namespaced_pod("default", pod("a", "sh", "-c", script))
        seen = []
        async for _, manifest in events(core, resource_version=version):
            seen.append(state(manifest))
            if manifest["status"]["phase"] == "Failed":
                break
        return seen

    seen = ask(cluster, follow)
    assert list(dict.fromkeys(seen)) == [
        "Pending none",
        "Pending waiting",
        "Running running",
        "Running terminated",
        "Failed terminated",
    ]
    now = ask(cluster, lambda core: core.read_namespaced_pod("a", "default"))
    ended = now.status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.message, ended.reason) == (3, "sorry\n", "Error")
    log = ask(cluster, lambda core: core.read_namespaced_pod_log("a", "default", timestamps=True))
    stamp, _, text = log.partition(" ")
    assert (len(stamp), text) == (len("2026-01-02T03:04:05.123456789Z"), "hello from a\n")


@pytest.mark.process
def test_deleting_an_owner_deletes_its_dependants_and_their_processes(
    cluster: KubernetesDouble,
) -> None:
    owner = cluster.create({"kind": "ConfigMap", "metadata": {"name": "owner"}, "data": {}})
    owned = pod("a", "sh", "-c", "trap '' TERM; sleep 60 & sleep 60; sleep 60")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
    owned["metadata"]["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"]}]
    owned["spec"]["terminationGracePeriodSeconds"] = 1
    cluster.create(owned)
    cluster.wait_for(lambda: state(cluster.pod("a")) == "Running running")
    [first] = cluster.pids("a").values()
    children = cluster.wait_for(lambda: psutil.Process(first).children())
    ask(cluster, lambda core: core.delete_namespaced_config_map("owner", "default"))
    cluster.wait_for(lambda: "deletionTimestamp" in (cluster.pod("a") or owned)["metadata"])
    cluster.wait_for(lambda: cluster.pod("a") is None)
    # The process that adopts orphans may leave them as zombies.
    assert not [child for child in children if is_alive(child.pid)]


@pytest.mark.process
def test_pods_are_reachable_by_name_and_receive_their_configuration(
    cluster: KubernetesDouble,
) -> None:
    cluster.create({"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"KEY": "secret"}})
    one = pod("a", "sh", "-c", "echo $(PEERS) $KEY $MISSING; pwd", subdomain="set", hostname="a-0")
    one["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    one["spec"]["containers"][0] |= {
        "workingDir": "/scratch",
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "env": [{"name": "PEERS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "peers"}}}],
        "envFrom": [{"secretRef": {"name": "s"}}],
    }
    cluster.create(one)
    cluster.wait_for(lambda: state(cluster.pod("a")) == "Pending waiting")
    data = {"peers": "a-0.set:2222,a-1.set:2222,a-0.set:2222"}
    cluster.create({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    cluster.wait_for(lambda: state(cluster.pod("a")) == "Succeeded terminated")
    log = ask(cluster, lambda core: core.read_namespaced_pod_log("a", "default"))
    (peers, key), (folder,) = (line.split() for line in log.splitlines())
    first, second, again = peers.split(",")
    assert first == again != second
    assert first.startswith("127.0.0.1:")
    assert (key, folder.endswith("/scratch")) == ("secret", True)


REFUSALS: dict[str, tuple[Ask, int, str]] = {
    "exists": (
        lambda core: core.create_namespaced_pod("default", pod("there")),
        409,
        'pods \\"there\\" already exists',
    ),
    "no namespace": (
        lambda core: core.create_namespaced_pod("nowhere", pod("a")),
        404,
        'namespaces \\"nowhere\\" not found',
    ),
    "long label": (
        lambda core: core.create_namespaced_config_map(
            "default", {"metadata": {"name": "a", "labels": {"l": "x" * 64}}}
        ),
        422,
        "metadata.labels[l]: Invalid value",
    ),
    "stale": (
        lambda core: core.patch_namespaced_pod(
            "there", "default", {"metadata": {"resourceVersion": "7", "labels": {"a": "b"}}}
        ),
        409,
        "the object has been modified",
    ),
    "another": (
        lambda core: core.delete_namespaced_pod(
            "there", "default", body={"preconditions": {"uid": "another"}}
        ),
        409,
        "the UID in the precondition (another) does not match",
    ),
    "quota": (
        lambda core: core.create_namespaced_secret("default", {"metadata": {"name": "second"}}),
        403,
        "exceeded quota: few, requested: count/secrets=1",
    ),
    "no right": (
        lambda core: core.list_namespaced_event("default"),
        403,
        'cannot list resource \\"events\\" in API group \\"\\" in the namespace \\"default\\"',
    ),
    "no log yet": (
        lambda core: core.read_namespaced_pod_log("there", "default"),
        400,
        "is waiting to start",
    ),
    "none": (
        lambda core: core.read_namespaced_pod("absent", "default"),
        404,
        'pods \\"absent\\" not found',
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_errors_have_the_wording_of_a_real_cluster(cluster: KubernetesDouble, case: str) -> None:
    cluster.imagine("there", statuses.waiting("ContainerCreating"))
    cluster.create(pod("there"))
    cluster.create({"kind": "Secret", "metadata": {"name": "first"}})
    hard = {"hard": {"count/secrets": "1"}}
    cluster.create({"kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": hard})
    cluster.deny("list", "events")
    question, code, words = REFUSALS[case]
    with pytest.raises(ApiException) as refused:
        ask(cluster, question)
    assert (refused.value.status, words in refused.value.body) == (code, True), refused.value.body


def test_lists_support_selectors_and_pages(cluster: KubernetesDouble) -> None:
    for name in ("a", "b", "c"):
        cluster.imagine(name, statuses.running())
        cluster.create(pod(name))
    cluster.edit("pods", "b", lambda it: it["metadata"]["labels"].update(set="b"))

    async def in_parts(core: CoreV1Api) -> list[list[str]]:
        first = await core.list_namespaced_pod("default", label_selector="set=a", limit=1)
        token = first.metadata._continue
        rest = await core.list_namespaced_pod("default", label_selector="set=a", _continue=token)
        return [[each.metadata.name for each in part.items] for part in (first, rest)]

    assert ask(cluster, in_parts) == [["a"], ["c"]]


def test_a_watch_continues_from_a_version_unless_that_is_too_old(cluster: KubernetesDouble) -> None:
    cluster.imagine("a", statuses.running())
    version = cluster.create(pod("a"))["metadata"]["resourceVersion"]

    async def follow(core: CoreV1Api) -> list[tuple[str, str]]:
        seen = []
        async for kind, manifest in events(core, resource_version=version, label_selector="set=a"):
            seen.append((kind, state(manifest)))
            if kind == "DELETED":
                break
        return seen

    cluster.become("a", statuses.out_of_memory())
    cluster.delete("pods", "a")
    assert ask(cluster, follow) == [
        ("MODIFIED", "Running running"),
        ("MODIFIED", "Failed terminated"),
        ("DELETED", "Failed terminated"),
    ]
    cluster.expire_watches()
    with pytest.raises(ApiException, match="Expired: too old resource version"):
        ask(cluster, follow)


def test_a_watch_can_be_cut_in_the_middle_of_a_line(cluster: KubernetesDouble) -> None:
    read = bytearray()

    async def follow() -> None:
        async with aiohttp.ClientSession() as session:
            url = f"{cluster.url}/api/v1/namespaces/default/pods?watch=1"
            async with session.get(url) as response:
                cluster.cut_watches()
                async for part in response.content.iter_any():
                    read.extend(part)

    with pytest.raises(aiohttp.ClientPayloadError):
        asyncio.run(follow())
    assert read.startswith(b'{"type"')
    assert not read.endswith(b"\n")


def test_failures_occur_as_ordered_and_every_request_is_recorded(cluster: KubernetesDouble) -> None:
    cluster.fail(429, verb="list", resource="pods")
    cluster.fail(500, verb="create", done=True)

    async def requests(core: CoreV1Api) -> None:
        with pytest.raises(ApiException):
            await core.list_namespaced_pod("default")
        await core.list_namespaced_pod("default")
        with pytest.raises(ApiException):
            await core.create_namespaced_config_map("default", {"metadata": {"name": "made"}})
        with cluster.away(), pytest.raises(aiohttp.ClientConnectorError):
            await core.list_namespaced_pod("default")

    ask(cluster, requests)
    assert cluster.find("configmaps", "made"), "only the answer was lost"
    assert [str(each) for each in cluster.requests] == [
        "list pods default/ -> 429",
        "list pods default/ -> 200",
        "create configmaps default/ -> 500",
    ]


def test_a_log_is_followed_to_its_end_without_lines_that_were_rotated(
    cluster: KubernetesDouble,
) -> None:
    cluster.imagine("a", statuses.running())
    cluster.create(pod("a"))
    cluster.wait_for(lambda: state(cluster.pod("a")) == "Running running")
    cluster.say("a", "one", "two")

    async def follow(core: CoreV1Api) -> list[str]:
        lines = []
        async with Watch() as watch:
            stream = watch.stream(core.read_namespaced_pod_log, "a", "default")
            async for line in stream:
                lines.append(line)
                if line == "two\n":
                    cluster.rotate_log("a")
                    cluster.say("a", "three")
                    cluster.become("a", statuses.exited(0))
        return lines

    assert ask(cluster, follow) == ["one\n", "two\n", "three\n"]
    left = ask(cluster, lambda core: core.read_namespaced_pod_log("a", "default"))
    assert left == "three\n"


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_forwarded_connection_that_is_reset_ends_without_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with forwarded("127.0.0.1", server.getsockname()[1]) as port:
            outside = socket.create_connection(("127.0.0.1", port))
            inside, _ = server.accept()
            # With this, closing the socket resets the connection.
            outside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            outside.close()
            assert inside.recv(1) == b""
            inside.close()
        for thread in threading.enumerate():
            if "pump" in thread.name:
                thread.join(5)
