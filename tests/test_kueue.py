"""Replica groups in a queue of Kueue: on a real cluster that has it, with the rights of deploy/."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import kubernetes.utils
import pytest
import yaml

from aerotrain.contract.status import State
from aerotrain.launch.decision import Ended
from aerotrain.launch.launcher import Launcher
from aerotrain_airflow.kubernetes.backend import KubernetesBackend
from support.kubernetes_worlds import CONN_ID, World, connection, eventually, grant

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("world", ["cluster"], indirect=True),
]

QUEUES = ("kueue.x-k8s.io", "v1beta1")

#: Four replicas of 0.1 cores fit, and no second group.
QUOTA = {"cpu": "500m", "memory": "4Gi"}

#: What replicas do that are to restart, and the resources of one that needs most of the quota.
SERVE = {"chief": "await_return", "worker": "report", "ps": "report"}
LARGE = {"resources": {"cpu": 0.4, "memory": "256Mi"}}

GANG = [{"role": "chief"}, {"role": "worker", "count": 2}]


@dataclass
class Queued:
    """A queue of its own in the world's namespace."""

    world: World
    custom: kubernetes.client.CustomObjectsApi
    lines: list[str]
    threads: ThreadPoolExecutor

    def backend(self, holder: str = "try-1") -> KubernetesBackend:
        return KubernetesBackend(self.world.settings(queue="kueue:research"), CONN_ID, holder)

    def start(self, name: str = "job", **job: Any) -> tuple[Launcher[Any], str]:
        launcher = Launcher(self.backend())
        plan = launcher.plan(self.world.job(name=name, **job), "try-1")
        launcher.check([plan])
        return launcher, launcher.start(plan)

    def follow(self, launcher: Launcher[Any], handle: str) -> Future[Ended]:
        def take(line: Any) -> None:
            self.lines.append(str(line))

        return self.threads.submit(launcher.watch, handle, take, until=None)

    def running(self, count: int, name: str = "job") -> bool:
        """Whether this many pods of a job run."""
        return [each.status.phase for each in self.world.pods(name).values()].count(
            "Running"
        ) == count

    def workloads(self) -> list[Any]:
        found = self.custom.list_namespaced_custom_object(
            *QUEUES, self.world.namespace, "workloads"
        )
        return list(found["items"])

    def used(self) -> set[str]:
        """What Kueue counts as used of each resource of the quota."""
        queue = self.custom.get_cluster_custom_object(
            *QUEUES, "clusterqueues", self.world.namespace
        )
        usage = queue.get("status", {}).get("flavorsUsage", [])
        return {each["total"] for flavor in usage for each in flavor["resources"]}

    def has_given_back_all(self) -> bool:
        return not self.world.pods() and not self.workloads() and self.used() == {"0"}


def queue_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    """A queue and a priority of the whole cluster, in the order of their creation."""
    quotas = [{"name": resource, "nominalQuota": most} for resource, most in QUOTA.items()]
    group = {"coveredResources": [*QUOTA], "flavors": [{"name": name, "resources": quotas}]}
    return [
        ("workloadpriorityclasses", {"kind": "WorkloadPriorityClass", "value": 1000}),
        ("resourceflavors", {"kind": "ResourceFlavor"}),
        (
            "clusterqueues",
            {
                "kind": "ClusterQueue",
                "spec": {
                    "namespaceSelector": {},
                    "resourceGroups": [group],
                    "preemption": {"withinClusterQueue": "LowerPriority"},
                },
            },
        ),
    ]


@pytest.fixture
def queued(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queued]:
    custom = kubernetes.client.CustomObjectsApi(world.core.api_client)
    try:
        custom.list_cluster_custom_object(*QUEUES, "clusterqueues")
    except kubernetes.client.ApiException as error:
        pytest.skip(f"this cluster has no Kueue ({error.reason}: {'/'.join(QUEUES)})")
    objects = queue_of(world.namespace)
    for plural, spec in objects:
        body = {"apiVersion": "/".join(QUEUES), "metadata": {"name": world.namespace}, **spec}
        custom.create_cluster_custom_object(*QUEUES, plural, body)
    local = {
        "apiVersion": "/".join(QUEUES),
        "kind": "LocalQueue",
        "metadata": {"name": "research"},
        "spec": {"clusterQueue": world.namespace},
    }
    custom.create_namespaced_custom_object(*QUEUES, world.namespace, "localqueues", local)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(grant(world)))
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection(kubeconfig))
    with ThreadPoolExecutor(4) as threads:
        yield Queued(world, custom, [], threads)
    for plural, _ in reversed(objects):
        custom.delete_cluster_custom_object(*QUEUES, plural, world.namespace)


def test_a_group_waits_as_a_whole_until_the_quota_is_free(
    queued: Queued, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, running = queued.start("first")
    eventually(lambda: queued.running(4, "first"))
    [admitted] = queued.workloads()
    assert [each["count"] for each in admitted["spec"]["podSets"]] == [1, 1, 2]
    # Shorter than its time in the queue, which does not count.
    second, waiting = queued.start("second", arguments={"chief": "meet"}, deadlines={"start": 5})
    end = queued.follow(second, waiting)
    eventually(lambda: "does not admit second: couldn't assign flavors" in caplog.text)
    assert not end.done()
    assert {each.status.phase for each in queued.world.pods("second").values()} == {"Pending"}
    first.stop(running)
    assert end.result(60).state is State.SUCCEEDED
    second.stop(waiting)
    eventually(queued.has_given_back_all)


@pytest.mark.parametrize(
    ("strategy", "victim", "how", "back"),
    [
        ("parameter_server", "worker-1", "kill", {"worker-1"}),
        ("parameter_server", "ps-0", "evict", {"chief", "ps-0"}),
        ("multi_worker_mirrored", "worker-0", "kill", {"chief", "worker-0", "worker-1"}),
        ("multi_worker_mirrored", "chief", "evict", {"chief", "worker-0", "worker-1"}),
    ],
)
def test_a_lost_replica_is_restarted_within_the_admitted_group(
    queued: Queued,
    strategy: str,
    victim: str,
    how: str,
    back: set[str],
) -> None:
    job = {
        "strategy": strategy,
        "replicas": GANG if strategy == "multi_worker_mirrored" else None,
        "arguments": {
            **SERVE,
            "awaited": dict.fromkeys(back, 1),
        },
    }
    launcher, handle = queued.start(**job)
    end = queued.follow(launcher, handle)
    eventually(
        lambda: len([each for each in queued.lines if "hello" in each]) == len(queued.world.pods())
    )
    pod, core, namespace = f"job-{victim}", queued.world.core, queued.world.namespace
    if how == "evict":
        core.create_namespaced_pod_eviction(pod, namespace, {"metadata": {"name": pod}})
    else:
        core.delete_namespaced_pod(pod, namespace, grace_period_seconds=0 if how == "kill" else 10)
    assert end.result(120).state is State.SUCCEEDED, queued.lines
    assert len(queued.workloads()) == 1
    assert {name.removeprefix("job-") for name in queued.world.pods() if name.endswith("-r1")} == {
        f"{each}-r1" for each in back
    }
    assert not queued.world.pods().keys() & {f"job-{each}" for each in back}
    launcher.stop(handle)
    eventually(queued.has_given_back_all)


@pytest.mark.parametrize(
    "end", ["success", "failure", "cancellation", "deletion by hand", "event of a trigger"]
)
def test_a_group_that_has_ended_in_any_way_leaves_no_pod_and_no_quota(
    queued: Queued, end: str
) -> None:
    does = {"success": "meet", "failure": "fail"}.get(end, "serve")
    launcher, handle = queued.start(arguments={"chief": does}, deadlines={"run": 20})
    if end == "cancellation":
        eventually(lambda: queued.running(4))
    elif end == "deletion by hand":
        queued.world.core.delete_namespaced_config_map("job", queued.world.namespace)
        assert queued.follow(launcher, handle).result(90).state is State.LOST
    else:
        queued.follow(launcher, handle).result(90)
    if end == "event of a trigger":
        asyncio.run(queued.backend().end_pods(handle))
        eventually(queued.has_given_back_all)
    launcher.stop(handle)
    eventually(queued.has_given_back_all)


def test_a_group_that_kueue_preempts_continues_once_the_quota_is_free(
    queued: Queued, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    workers = dict.fromkeys(("worker-0", "worker-1"), 1)
    first, preempted = queued.start(
        "first", arguments={**SERVE, "awaited": workers}, deadlines={"start": 5}
    )
    end = queued.follow(first, preempted)
    eventually(lambda: queued.running(4, "first"))
    urgent = {"metadata": {"labels": {"kueue.x-k8s.io/priority-class": queued.world.namespace}}}
    second, urgently = queued.start("second", replicas=[{"role": "chief", "pod": urgent, **LARGE}])
    eventually(lambda: queued.running(1, "second"))
    eventually(lambda: "does not admit first: Preempted to accommodate" in caplog.text)
    assert not end.done()
    second.stop(urgently)
    assert end.result(120).state is State.SUCCEEDED
    first.stop(preempted)
    eventually(queued.has_given_back_all)


def test_a_replica_that_is_restarted_with_more_memory_is_admitted(queued: Queued) -> None:
    launcher, handle = queued.start(arguments={"worker": "devour"}, restarts={"memory": 1})
    ended = queued.follow(launcher, handle).result(120)
    assert "was restarted 1 time, and restarts.memory is 1" in ended.reason
    memory = {
        each.spec.containers[0].resources.limits["memory"] for each in queued.world.pods().values()
    }
    assert "384Mi" in memory
    launcher.stop(handle)
    eventually(queued.has_given_back_all)
