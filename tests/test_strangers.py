"""Objects with the labels or names of a replica group that are not its own: ignored and kept.

Other people use the same namespace. They copy pods to inspect them, reuse labels, restore backups,
and may have used a name first.
"""

import copy
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.status import State
from aerotrain.store import open_store
from aerotrain_airflow.kubernetes import lifecycle
from aerotrain_airflow.kubernetes.identity import HOLDER, JOB_LABEL
from support.imagined_groups import ImaginedGroup
from support.kubernetes_double import KubernetesDouble, statuses
from support.kubernetes_worlds import ALONE, World, eventually, on_a_cluster

LABELS = {JOB_LABEL: "job"}


def looks_like(pod: dict[str, Any], name: str, *command: str) -> dict[str, Any]:
    """A copy of a pod, with all its labels and owners, that runs something else."""
    made = copy.deepcopy(pod)
    made["metadata"]["name"] = name
    made["spec"]["containers"][0] |= {"command": list(command), "args": []}
    return made


@on_a_cluster
def test_foreign_pods_end_no_training_whatever_their_labels(world: World) -> None:
    launcher = world.launcher()
    arguments = {"chief": "await_return", "awaited": {"test": 1}}
    job = world.job(replicas=ALONE, arguments=arguments)
    plan = launcher.plan(job, "try-1")
    [chief] = [each for each in plan.others if each["kind"] == "Pod"]
    handle = launcher.start(plan)
    owner = world.core.read_namespaced_config_map("job", world.namespace)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "job", "uid": owner.metadata.uid}
    copied, adopted = (looks_like(chief, name, "true") for name in ("copy", "adopted"))
    adopted["metadata"]["ownerReferences"] = [reference]
    labelled = looks_like(chief, "labelled", "true")
    labelled["metadata"]["labels"] = LABELS
    with ThreadPoolExecutor(1) as thread:
        end = thread.submit(launcher.watch, handle, lambda line: None, until=None)
        for each in (copied, adopted, labelled):
            world.core.create_namespaced_pod(world.namespace, each)
        eventually(lambda: phases(world, "copy", "adopted", "labelled") == ["Succeeded"] * 3)
        uid = world.pods()["job-chief"].metadata.uid
        open_store(f"{job.prefix}/lives").put("test/1", b"here")
        assert end.result(120).state is State.SUCCEEDED
    assert open_store(job.prefix).get("result.json")
    assert world.pods()["job-chief"].metadata.uid == uid
    launcher.stop(handle)
    eventually(lambda: world.pods().keys() == {"copy", "labelled"})


def phases(world: World, *names: str) -> list[str]:
    pods = world.pods()
    return [pods[name].status.phase for name in names]


def test_a_foreign_service_with_the_name_of_a_job_is_kept_and_named_in_the_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DELETED_WITHIN", 1.0)
    body = {"metadata": {"name": "job", "labels": LABELS}, "spec": {"ports": [{"port": 80}]}}
    theirs = world.core.create_namespaced_service(world.namespace, body)
    launcher = world.launcher()
    with pytest.raises(TemporaryError, match="there is a Service job"):
        launcher.start(launcher.plan(world.job(), "try-1"))
    now = world.core.read_namespaced_service("job", world.namespace)
    assert now.metadata.uid == theirs.metadata.uid
    assert now.metadata.deletion_timestamp is None


@pytest.mark.process
class TestUnderOurNames:
    @pytest.fixture
    def ours(self, own: KubernetesDouble) -> ImaginedGroup:
        return ImaginedGroup(own)

    def stranger(self, of: ImaginedGroup, name: str) -> str:
        """A foreign pod that has everything that our chief has, except its owner."""
        pod = of.pod()
        for field in ("uid", "resourceVersion", "creationTimestamp", "ownerReferences"):
            pod["metadata"].pop(field, None)
        of.double.imagine(name, statuses.running(), of.namespace)
        pod["metadata"]["name"] = name
        uid: str = of.double.create(pod, of.namespace)["metadata"]["uid"]
        return uid

    def test_a_foreign_pod_with_the_name_of_a_restarted_replica_is_not_deleted(
        self, ours: ImaginedGroup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lifecycle, "DELETED_WITHIN", 1.0)
        theirs = self.stranger(ours, "job-chief-r1")
        ours.double.delete("pods", "job-chief", ours.namespace, gracePeriodSeconds=0)
        ended = ours.followed().end()
        assert ended.state is State.LOST
        assert f"there is a Pod job-chief-r1 in {ours.namespace} that is not" in ended.reason
        assert ours.uids() == {"job-chief-r1": theirs}

    def test_the_next_try_deletes_only_objects_of_the_previous_one(
        self, ours: ImaginedGroup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lifecycle, "DELETED_WITHIN", 1.0)
        ours.double.hold("job-chief", ours.namespace)  # so that pods are deleted by force
        theirs = self.stranger(ours, "theirs")
        another = ImaginedGroup.job_of(arguments={"another": "job"})
        second = ours.launcher_of("try-2")
        second.start(second.plan(another, "try-2"))
        assert ours.uids()["theirs"] == theirs

    def test_an_owner_restored_from_a_copy_is_foreign(self, ours: ImaginedGroup) -> None:
        owner = ours.double.find("configmaps", "job", ours.namespace)
        assert owner
        ours.double.delete("configmaps", "job", ours.namespace)
        for field in ("uid", "resourceVersion", "creationTimestamp"):
            del owner["metadata"][field]
        ours.double.create(owner, ours.namespace)
        assert ours.launcher.events(ours.handle) == []
        ended = ours.followed().end()
        assert (ended.state, "is gone" in ended.reason) == (State.LOST, True)
        ours.launcher.stop(ours.handle)
        assert ours.double.find("configmaps", "job", ours.namespace)

    def test_events_of_an_earlier_pod_of_the_same_name_are_not_reported(
        self, ours: ImaginedGroup, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        ours.double.tell("job-chief", "FailedMount", "an old story", namespace=ours.namespace)
        ours.followed().become(statuses.exited(139))
        ours.until_restarted(1)
        ours.double.tell("job-chief-r1", "FailedMount", "the cause", namespace=ours.namespace)
        ours.become(statuses.exited(65))
        assert ours.end().state is State.FAILED
        assert "chief FailedMount: the cause" in caplog.messages
        assert "chief FailedMount: an old story" not in caplog.messages


def test_an_owner_without_a_holder_is_foreign(world: World) -> None:
    """As when ``kubectl apply`` creates one from a dry run."""
    launcher = world.launcher()
    plan = launcher.plan(world.job(), "try-1")
    assert HOLDER not in plan.owner["metadata"]["annotations"]
    theirs = world.core.create_namespaced_config_map(world.namespace, plan.owner)
    with pytest.raises(FinalError, match="there is a ConfigMap job"):
        launcher.start(plan)
    launcher.stop(plan.handle)
    now = world.core.read_namespaced_config_map("job", world.namespace)
    assert now.metadata.uid == theirs.metadata.uid
