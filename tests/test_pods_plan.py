"""From a job to manifests: what a platform team sees in them, and the jobs that are refused."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from aerotrain.contract.environment import read_cluster
from aerotrain.contract.errors import SpecError, TerminationMessage
from aerotrain.contract.job import Job
from aerotrain_airflow.kubernetes.lifecycle import owner_of
from aerotrain_airflow.kubernetes.plan import PodPlan, PodSettings, plan_pods
from aerotrain_airflow.kubernetes.template import merge, read_template

#: The oldest supported Kubernetes, and the newest one with published schemas.
VERSIONS = ("1.28", kubernetes_validate.latest_version())

IMAGE = "registry.example/aerotrain-training:1"

#: What a platform team may require of every pod...
PLATFORM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"team": "vision"}, "annotations": {"cost-centre": "42"}},
    "spec": {
        "nodeSelector": {"pool": "training"},
        "tolerations": [{"key": "training", "operator": "Exists"}],
        "priorityClassName": "batch",
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "containers": [
            {
                "name": "base",
                "image": "registry.example/other:2",
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
                "envFrom": [{"configMapRef": {"name": "everywhere"}}],
                "resources": {"limits": {"cpu": "8", "ephemeral-storage": "10Gi"}},
            },
            {"name": "proxy", "image": "registry.example/proxy:1"},
        ],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}}],
    },
}

#: ...and a data scientist of the workers, in addition.
OF_WORKERS: dict[str, Any] = {
    "spec": {
        "nodeSelector": {"accelerator": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "replica",
                "env": [{"name": "HTTPS_PROXY", "value": "http://other:3128"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
}


def job(strategy: str = "parameter_server", *replicas: dict[str, Any], **changes: Any) -> Job:
    default = [{"role": "chief"}, {"role": "worker", "count": 2}, {"role": "ps"}]
    return Job.from_dict(
        {
            "name": "train-digits-1a2b3c4d",
            "module": "aerotrain.training.train",
            "store": "s3://bucket/digits",
            "run": "manual",
            "task": "train",
            "strategy": strategy,
            "replicas": list(replicas) or default,
            "arguments": {"model": "digits", "epochs": 3},
            "code": "s3://bucket/digits/code/abc.tar.gz",
            "deadlines": {"run": 3600},
            **changes,
        }
    )


def plan(described: Job | None = None, attempt: str = "try-1", **settings: Any) -> PodPlan:
    made = PodSettings(**{"namespace": "aerotrain", "image": IMAGE, **settings})
    return plan_pods(described or job(), attempt, made)


def gpus() -> Job:
    resources = {"cpu": 7.5, "memory": "60Gi", "gpu": 2, "shared_memory": "16Gi"}
    return job(
        "multi_worker_mirrored",
        {"role": "chief", "resources": resources},
        {"role": "worker", "count": 3, "resources": resources},
        {"role": "evaluator", "environment": {"CUDA_VISIBLE_DEVICES": "-1"}},
    )


def templated() -> Job:
    return job(
        "parameter_server",
        {"role": "chief"},
        {"role": "worker", "count": 2, "pod": OF_WORKERS, "environment": {"OMP_NUM_THREADS": "1"}},
        {"role": "ps", "count": 2},
    )


def spot(*, last: bool = False) -> Job:
    own = {"nodeSelector": {"pool": "cheap"}, "tolerations": [{"key": "mine"}]}
    return job(
        "parameter_server",
        {"role": "chief", "spot": False},
        {"role": "worker", "count": 2, "spot": not last, "pod": {"spec": own}},
        {"role": "ps", "spot": False},
    )


#: Jobs, each with the settings of its plan.
CASES: dict[str, tuple[Job, dict[str, Any]]] = {
    "digits": (job(), {"store_secret": "store"}),
    "alone": (job("one_device", {"role": "chief"}), {"service_account": "aerotrain-replica"}),
    "gpus": (gpus(), {"namespace": "vision"}),
    "tpu": (job("tpu", {"role": "chief", "resources": {"tpu": 4}}), {}),
    "templates": (templated(), {"pod_template": PLATFORM}),
    "kueue": (job(), {"queue": "kueue:research"}),
    "spot": (spot(), {}),
}


def pods(case: str) -> dict[str, dict[str, Any]]:
    """The pods of a case by the names of their replicas."""
    described, settings = CASES[case]
    planned = plan(described, **settings)
    return {each["spec"]["hostname"]: each for each in planned.pods}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in pod["spec"]["containers"] if each["name"] == "replica")


@pytest.mark.parametrize(
    ("case", "replica", "requests", "limits"),
    [
        ("digits", "ps-0", {"cpu": "250m", "memory": "1536Mi"}, {"memory": "1536Mi"}),
        (
            *("gpus", "worker-2", {"cpu": "7500m", "memory": "60Gi"}),
            {"memory": "60Gi", "nvidia.com/gpu": "2"},
        ),
        (
            *("tpu", "chief", {"cpu": "250m", "memory": "1536Mi"}),
            {"memory": "1536Mi", "google.com/tpu": "4"},
        ),
        (
            *("templates", "worker-0", {"cpu": "250m", "memory": "1536Mi"}),
            {"cpu": "8", "ephemeral-storage": "10Gi", "memory": "1536Mi"},
        ),
    ],
)
def test_a_pod_has_the_resources_of_its_replica(
    case: str, replica: str, requests: dict[str, str], limits: dict[str, str]
) -> None:
    resources = container(pods(case)[replica])["resources"]
    assert resources == {"requests": requests, "limits": limits}


def test_shared_memory_is_a_volume_in_memory_of_that_size() -> None:
    pod = pods("gpus")["chief"]
    mounts = {each["mountPath"]: each["name"] for each in container(pod)["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    empty = {"medium": "Memory", "sizeLimit": "16Gi"}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == empty
    assert "/dev/shm" not in str(pods("gpus")["evaluator"])


def test_what_the_platform_requires_is_in_every_pod_and_a_role_adds_its_own() -> None:
    chief, worker = (pods("templates")[name] for name in ("chief", "worker-1"))
    for pod in (chief, worker):
        assert pod["metadata"]["labels"]["team"] == "vision"
        assert pod["metadata"]["annotations"]["cost-centre"] == "42"
        assert pod["spec"]["priorityClassName"] == "batch"
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert {"runAsUser": 1000, "fsGroup": 1000}.items() <= pod["spec"][
            "securityContext"
        ].items()
        assert container(pod)["image"] == "registry.example/other:2"
        assert container(pod)["envFrom"] == [{"configMapRef": {"name": "everywhere"}}]
        assert [each["name"] for each in pod["spec"]["containers"]] == ["replica", "proxy"]
        policies = {each["terminationMessagePolicy"] for each in pod["spec"]["containers"]}
        assert policies == {"FallbackToLogsOnError"}, "so a failed side-car has a message"
        assert pod["spec"]["volumes"][0]["emptyDir"] == {"sizeLimit": "20Gi"}
    assert chief["spec"]["nodeSelector"] == {"pool": "training"}
    assert worker["spec"]["nodeSelector"] == {"pool": "training", "accelerator": "h100"}
    assert [each["key"] for each in worker["spec"]["tolerations"]] == ["training", "nvidia.com/gpu"]
    assert worker["spec"]["volumes"][1]["persistentVolumeClaim"] == {"claimName": "data"}
    assert container(worker)["volumeMounts"][-1]["mountPath"] == "/data"
    variables = {each["name"]: each.get("value") for each in container(worker)["env"]}
    assert variables["HTTPS_PROXY"] == "http://other:3128"
    assert variables["OMP_NUM_THREADS"] == "1"


def test_workers_prefer_spot_nodes_and_tolerate_their_taints_and_all_others_avoid_them() -> None:
    labels = {
        "cloud.google.com/gke-spot": "true",
        "eks.amazonaws.com/capacityType": "SPOT",
        "kubernetes.azure.com/scalesetpriority": "spot",
        "karpenter.sh/capacity-type": "spot",
    }
    for name, pod in pods("spot").items():
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        if name.startswith("worker"):
            *tolerated, own = pod["spec"]["tolerations"]
            assert {each["key"]: each["value"] for each in tolerated} == labels
            assert own == {"key": "mine"}, "what the template adds"
            assert pod["spec"]["nodeSelector"] == {"pool": "cheap"}
            preferred = affinity.pop("preferredDuringSchedulingIgnoredDuringExecution")
            terms = [term for each in preferred for term in each["preference"]["matchExpressions"]]
            assert {each["key"]: each["values"] for each in terms if each["operator"] == "In"} == {
                key: [value] for key, value in labels.items()
            }
            assert affinity == {}, "a worker may run elsewhere, too"
        else:
            assert "tolerations" not in pod["spec"]
            [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert {
                each["key"]: each["values"]
                for each in term["matchExpressions"]
                if each["operator"] == "NotIn"
            } == {key: [value] for key, value in labels.items()}
        assert "priorityClassName" not in pod["spec"]
    assert "affinity" not in str(plan().pods), "a job that does not mention spot takes any node"


def test_the_last_try_which_asks_for_no_spot_nodes_takes_over_a_group_that_may_succeed() -> None:
    assert plan(spot(last=True)).description == plan(spot()).description
    [_, worker, *_] = plan(spot(last=True)).pods
    assert "NotIn" in str(worker["spec"]["affinity"])


def test_kubernetes_restarts_no_pod_and_ends_one_without_a_follower() -> None:
    for pod in pods("digits").values():
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["spec"]["activeDeadlineSeconds"] == 3900, "the job's deadline, and 300 s"


def test_only_the_job_can_reach_its_pods_and_no_pod_has_a_token_of_kubernetes() -> None:
    [policy] = [each for each in plan().others if each["kind"] == "NetworkPolicy"]
    own = {"matchLabels": {"aerotrain/job": "train-digits-1a2b3c4d"}}
    assert policy["spec"]["podSelector"] == own
    port = {"protocol": "TCP", "port": 2222}
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": own}], "ports": [port]}]
    assert not any(pod["spec"]["automountServiceAccountToken"] for pod in pods("digits").values())
    assert pods("alone")["chief"]["spec"]["serviceAccountName"] == "aerotrain-replica"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_field_of_every_manifest_is_in_the_schema_of_kubernetes(
    case: str, version: str
) -> None:
    described, settings = CASES[case]
    for manifest in yaml.safe_load_all(str(plan(described, **settings))):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_printed_plan_has_the_manifests_that_would_be_created_and_no_credential() -> None:
    planned = plan(templated(), pod_template=PLATFORM, store_secret="store")
    assert list(yaml.safe_load_all(str(planned))) == [planned.owner, *planned.others]
    assert "&id" not in str(planned), "people read no anchors"
    assert str(planned).count("secretRef:") == 5
    assert "AWS_" not in str(planned)


def test_every_replica_has_its_name_and_all_addresses_in_its_environment() -> None:
    planned = plan()
    [ps] = [each for each in planned.others if each["metadata"]["name"].endswith("-ps-0")]
    env = {each["name"]: each for each in ps["spec"]["containers"][0]["env"]}
    assert (env["AEROTRAIN_ROLE"]["value"], env["AEROTRAIN_INDEX"]["value"]) == ("ps", "0")
    reference = env["AEROTRAIN_CLUSTER"]["valueFrom"]["configMapKeyRef"]
    assert reference["name"] == planned.owner["metadata"]["name"]
    cluster = read_cluster(planned.owner["data"][reference["key"]])
    pods = [each["spec"] for each in planned.pods]
    hosts = [f"{each['hostname']}.{each['subdomain']}:2222" for each in pods]
    assert [*cluster["chief"], *cluster["worker"], *cluster["ps"]] == hosts
    assert Job.from_json(planned.owner["data"]["job.json"]) == planned.job
    [service] = [each for each in planned.others if each["kind"] == "Service"]
    assert ps["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= ps["metadata"]["labels"].items()


def test_no_object_of_a_group_of_ten_thousand_replicas_is_near_its_limit() -> None:
    planned = plan(job("parameter_server", *_roles(chief=1, worker=9_900, ps=99)))
    sizes = [len(json.dumps(each)) for each in (owner_of(planned, "try"), *planned.others)]
    assert max(sizes) < 32 * 1024, "of 1 MiB, of which the event log may take the half"


def test_launches_have_the_same_description_only_if_their_job_is_the_same() -> None:
    described = plan().description
    assert plan(attempt="try-2").description == described
    assert plan(queue="kueue:q").description == plan(queue="kueue:q", attempt="2").description
    others = [
        plan(job(arguments={"model": "digits", "epochs": 4})),
        plan(image="registry.example/aerotrain-training:2"),
        plan(pod_template=PLATFORM),
        plan(job("parameter_server", *_roles(chief=1, worker=3, ps=1))),
    ]
    assert len({described, *(each.description for each in others)}) == 5
    assert plan().owner["metadata"]["annotations"]["aerotrain/description"] == described
    assert plan().handle == "aerotrain/train-digits-1a2b3c4d/try-1"


def test_a_variable_reaches_its_replica_as_it_was_written() -> None:
    environment = {"PATTERN": "$(HOME)/$x$$"}
    [*_, pod] = plan(job("one_device", {"role": "chief", "environment": environment})).others
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    # Kubernetes reads $$ as $, and only replaces $(NAME) by a variable.
    assert env["PATTERN"] == "$$(HOME)/$$x$$$$"


def test_pods_meet_the_restricted_pod_standard_unless_a_template_says_otherwise() -> None:
    [*_, pod] = plan().others
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "runAsGroup": 65532,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    writable = {"spec": {"containers": [{"name": "replica", "securityContext": {}}]}}
    writable["spec"]["containers"][0]["securityContext"] = {"readOnlyRootFilesystem": False}
    [*_, pod] = plan(pod_template=writable).others
    allowed = pod["spec"]["containers"][0]["securityContext"]
    assert allowed["readOnlyRootFilesystem"] is False
    assert allowed["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": None}}, {"a": {"b": 1}}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "valueFrom": {}}]},
            {"env": [{"name": "A", "valueFrom": {}}, {"name": "B", "value": "2"}]},
        ),
        (
            {"containers": [{"name": "a", "image": "x", "tty": True}]},
            {"containers": [{"name": "b"}, {"name": "a", "image": "y"}]},
            {"containers": [{"name": "a", "image": "y", "tty": True}, {"name": "b"}]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
        ),
        (
            {"volumeMounts": [{"name": "a", "mountPath": "/data"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/data"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/data"}]},
        ),
    ],
)
def test_templates_are_merged_field_by_field(
    base: dict[str, Any], over: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert merge(base, over) == merged


@pytest.mark.parametrize(
    ("template", "grace"),
    [
        ({}, None),
        ({"spec": {"terminationGracePeriodSeconds": 120}}, "118.0"),
        ({"spec": {"terminationGracePeriodSeconds": 1}}, "0.5"),
        ({"spec": {"terminationGracePeriodSeconds": None}}, "28.0"),  # Kubernetes' default is 30
    ],
)
def test_a_replica_may_save_for_as_long_as_its_pod_has_to_end(
    template: dict[str, Any], grace: str | None
) -> None:
    chief = plan(pod_template=template).pods[0]
    variables = {each["name"]: each for each in chief["spec"]["containers"][0]["env"]}
    assert variables.get("AEROTRAIN_GRACE", {}).get("value") == grace


def _in_container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "replica", **fields}]}}


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ({"spec": {"hostname": "x"}}, "sets spec.hostname to 'x', which is how replicas find"),
        ({"spec": {"hostNetwork": True}}, "would open TensorFlow's port to other hosts"),
        ({"spec": {"restartPolicy": "Always"}}, "sets spec.restartPolicy to 'Always', which is"),
        ({"metadata": {"name": "x"}}, "sets metadata.name to 'x'"),
        ({"metadata": {"labels": {"aerotrain/job": "x"}}}, "sets metadata.labels 'aerotrain/job'"),
        (
            _in_container(command=["sh"]),
            "sets command to ['sh'], which is how a replica is started",
        ),
        (
            _in_container(env=[{"name": "TF_CONFIG", "value": "{}"}]),
            "sets the variable TF_CONFIG, which the launcher sets",
        ),
        (
            _in_container(env=[{"name": "AEROTRAIN_ROLE", "value": "ps"}]),
            "sets the variable AEROTRAIN_ROLE",
        ),
        (
            _in_container(resources={"requests": {"memory": "8Gi"}}),
            "sets resources.requests.memory to '8Gi', which comes from",
        ),
        ({"kind": "Deployment", "apiVersion": "apps/v1"}, "of kind Pod in v1, got Deployment in"),
        ({"spce": {"nodeSelector": {}, "a": 1}}, "has 'spce', which no Pod has"),
        ({"spec": ["a"]}, "has spec ['a']; write it as Kubernetes does"),
        ({"spec": {"containers": [{"image": "x"}]}}, "has containers without name"),
        (_in_container(env=["A=1"]), "has env without name: 'A=1'"),
        ({"spec": {"volumes": {"name": "a"}}}, "has volumes {'name': 'a'}; write it as Kubernetes"),
        ({"metadata": {"annotations": {"since": yaml.safe_load("2026-11-21")}}}, "in quotes"),
    ],
)
def test_a_template_that_sets_a_reserved_field_is_refused_by_its_name(
    template: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(sentence)) as of_all:
        plan(pod_template=template)
    assert "the pod template" in str(of_all.value)
    workers = {"role": "worker", "pod": template}
    with pytest.raises(SpecError, match="the pod template of worker"):
        plan(job("parameter_server", {"role": "chief"}, workers, {"role": "ps"}))


def test_a_template_may_be_output_of_kubectl(tmp_path: Path) -> None:
    printed = tmp_path / "pod.yaml"
    printed.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  creationTimestamp: null\n"
        "spec:\n  restartPolicy: Never\n  containers:\n  - name: x\n    resources: {}\nstatus: {}\n"
    )
    assert plan(pod_template=read_template(printed)).description == plan().description


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "cannot be read"),
        ("- a", "should be the YAML of one Pod"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_template_is_refused(
    tmp_path: Path, text: str | None, sentence: str
) -> None:
    file = tmp_path / "pod.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError, match=sentence):
        read_template(file)


def _roles(**counts: Any) -> list[dict[str, Any]]:
    return [{"role": role, "count": count} for role, count in counts.items()]


@pytest.mark.parametrize(
    ("changes", "settings", "sentence"),
    [
        ({"store": "file:///data"}, {}, "pods share no disk; set [aerotrain] store to an s3://"),
        ({"code": "/dags/models"}, {}, "pack it into the store"),
        ({"name": "a" * 57}, {}, "would have a name of 66 letters and 63 are allowed"),
        ({}, {"image": ""}, "no image is set for chief"),
        ({}, {"queue": "research"}, "write kueue:NAME, or nothing"),
        (
            {"replicas": _roles(chief=1, worker="1..2", ps=1)},
            {"queue": "kueue:research"},
            "asks for 1 to 2 workers, and Kueue admits groups of a fixed number",
        ),
        ({"arguments": {"names": "x" * 200_000}}, {}, "put what is large in its arguments into"),
    ],
)
def test_a_job_that_cannot_run_as_pods_is_refused(
    changes: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(sentence)):
        plan(job(**changes), **settings)


@pytest.mark.process
@pytest.mark.parametrize(("age", "hangs"), [(50, False), (70, True)])
def test_the_liveness_probe_says_why_it_ends_a_replica(
    tmp_path: Path, age: int, hangs: bool
) -> None:
    beat, log = tmp_path / "heartbeat", tmp_path / "termination-log"
    beat.touch()
    os.utime(beat, times=(time.time() - age,) * 2)
    [*_, pod] = plan().others
    command = pod["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    for path, own in (("/scratch/heartbeat", beat), ("/dev/termination-log", log)):
        command = [each.replace(path, str(own)) for each in command]
    assert subprocess.run(command, check=False).returncode == hangs
    said = log.read_text() if log.exists() else ""
    assert TerminationMessage.parse(said).no_heartbeat is hangs
