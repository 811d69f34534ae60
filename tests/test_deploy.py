"""The files of ``deploy/`` for a platform team are consistent with Kubernetes and the launcher."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import distribution, distributions
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from aerotrain.contract.job import Job
from aerotrain.standalone.cli import parse
from aerotrain_airflow.kubernetes import nodes
from aerotrain_airflow.kubernetes.access import REQUIRED, Access
from aerotrain_airflow.kubernetes.kueue import Kueue
from aerotrain_airflow.kubernetes.plan import PodSettings, plan_pods
from aerotrain_airflow.kubernetes.pod import server_pod
from aerotrain_airflow.kubernetes.template import read_template
from aerotrain_airflow.settings import Settings

DEPLOY = Path(__file__).parent.parent / "deploy"
MANIFESTS = sorted(
    file
    for file in (*DEPLOY.glob("*.yaml"), *DEPLOY.glob("*/*.yaml"))
    if file.name not in ("kustomization.yaml", "helm-values.yaml", "alerts.yaml")
)

#: Files that a team applies only if it needs them.
OPTIONAL = {"namespace.yaml", "kueue.yaml", "nodes.yaml", "pod-template.yaml"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


KUSTOMIZATION = documents("kustomization.yaml")[0]
VALUES = documents("helm-values.yaml")[0]


def plan(**settings: Any) -> list[dict[str, Any]]:
    job = Job.from_dict(
        {
            "name": "train",
            "module": "aerotrain.training.train",
            "store": "s3://bucket/digits",
            "run": "manual",
            "task": "train",
        }
    )
    made = PodSettings(**{"namespace": "aerotrain", "image": "a:1", **settings})
    return list(plan_pods(job, "try-1", made).others)


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_every_field_of_a_manifest_is_in_the_schema_of_kubernetes(file: Path, version: str) -> None:
    for manifest in documents(str(file)):
        if manifest["kind"] == "InferenceService":  # a pod, and some fields of KServe
            spec = dict(manifest["spec"]["predictor"])
            del spec["minReplicas"], spec["maxReplicas"]
            manifest = {**manifest, "apiVersion": "v1", "kind": "Pod", "spec": spec}
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("role.yaml", REQUIRED),
        ("kueue.yaml", tuple(Access(*each) for each in Kueue.permissions)),
        ("nodes.yaml", tuple(Access(*each) for each in nodes.PERMISSIONS)),
    ],
)
def test_the_role_grants_exactly_what_the_launcher_needs(
    file: str, table: tuple[Access, ...]
) -> None:
    granted = [access for each in documents(file) for access in _accesses(each)]
    assert set(granted) == set(table)
    assert len(granted) == len(table)


def test_the_server_of_a_model_pulls_what_is_promoted_into_the_folder_that_it_watches() -> None:
    deployment, _, service = documents("serving/flats.yaml")
    pod = deployment["spec"]["template"]["spec"]
    server, puller = pod["containers"]
    first = pod["initContainers"][0]
    for container, once in ((first, True), (puller, False)):
        words = container["args"]
        assert words[:3] == ["python", "-m", "aerotrain"]
        given = parse(words[3:])
        assert (given.command, str(given.folder), given.once) == ("pull", "/models/flats", once)
    assert "--model_base_path=/models/flats" in server["args"]
    for each in (first, server, puller):
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_servers_of_several_replicas_are_spread_and_not_drained_together() -> None:
    there = [each for file in MANIFESTS for each in documents(str(file))]
    budgets = [each["spec"] for each in there if each["kind"] == "PodDisruptionBudget"]
    several = [each for each in there if (each.get("spec") or {}).get("replicas", 1) > 1]
    assert several
    for each in several:
        template = each["spec"]["template"]
        own = {"matchLabels": template["metadata"]["labels"]}
        assert {"maxUnavailable": 1, "selector": own} in budgets
        [spread] = template["spec"]["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["labelSelector"]) == ("kubernetes.io/hostname", own)


def test_an_inference_service_of_kserve_pulls_one_version_into_the_folder_that_it_serves() -> None:
    [service] = documents("serving/flats-kserve.yaml")
    predictor = service["spec"]["predictor"]
    [pull], [server] = predictor["initContainers"], predictor["containers"]
    given = parse(pull["args"][3:])
    assert (given.command, str(given.folder), given.version) == ("pull", "/models/flats", 1)
    assert server["name"] == "kserve-container"
    assert "--model_base_path=/models/flats" in server["args"]
    for each in (pull, server):
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("file", ["rolebinding.yaml", "kueue.yaml", "nodes.yaml"])
def test_every_role_and_account_that_a_binding_names_exists(file: str) -> None:
    [binding] = [each for each in documents(file) if each["kind"].endswith("RoleBinding")]
    files = ("role.yaml", "kueue.yaml", "nodes.yaml")
    roles = [each for name in files for each in documents(name)]
    assert binding["roleRef"]["name"] in [each["metadata"]["name"] for each in roles]
    accounts = [each["metadata"]["name"] for each in documents("serviceaccount.yaml")]
    here = [each for each in binding["subjects"] if each["namespace"] == KUSTOMIZATION["namespace"]]
    assert [each["name"] for each in here] == ["aerotrain-launcher"]
    assert here[0]["name"] in accounts


def test_the_kustomization_contains_every_manifest_that_is_not_optional() -> None:
    files = {file.name for file in MANIFESTS if file.parent == DEPLOY}
    assert files - OPTIONAL == set(KUSTOMIZATION["resources"])
    for file in KUSTOMIZATION["resources"]:
        for manifest in documents(file):
            assert manifest["metadata"]["namespace"] == KUSTOMIZATION["namespace"]


def test_the_network_policy_covers_every_pod_of_a_job() -> None:
    [policy] = documents("networkpolicy.yaml")
    [*_, pod] = plan()
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("address", "port", "admitted"),
    [
        ("169.254.169.254", 80, False),  # the metadata of every cloud
        ("169.254.169.254", 443, False),
        ("169.254.170.23", 80, False),
        ("fd00:ec2::254", 443, False),
        ("fe80::1", 443, False),
        ("169.254.20.10", 53, True),
        ("52.216.0.1", 443, True),
        ("2600:1f18::1", 443, True),
        ("52.216.0.1", 80, False),
        ("10.0.0.5", 5432, False),
    ],
)
def test_replicas_reach_dns_and_https_but_no_metadata(
    address: str, port: int, admitted: bool
) -> None:
    [policy] = documents("networkpolicy.yaml")
    assert "Egress" in policy["spec"]["policyTypes"]
    blocks = [
        peer["ipBlock"]
        for rule in policy["spec"]["egress"]
        if port in [each["port"] for each in rule.get("ports", [])]
        for peer in rule["to"]
        if "ipBlock" in peer
    ]
    assert (
        any(
            ip_address(address) in ip_network(each["cidr"])
            and not any(
                ip_address(address) in ip_network(other) for other in each.get("except", [])
            )
            for each in blocks
        )
        is admitted
    )


def test_nothing_is_deployed_into_the_namespace_default() -> None:
    assert Settings.__dataclass_fields__["namespace"].metadata["default"] == "aerotrain"
    for file in filter(Path.is_file, DEPLOY.rglob("*")):
        assert "namespace: default" not in file.read_text()


def test_the_example_of_a_pod_template_is_valid() -> None:
    [*_, pod] = plan(pod_template=read_template(DEPLOY / "pod-template.yaml"))
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    assert pod["spec"]["containers"][0]["image"] == "a:1"
    assert {"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}} in pod["spec"]["volumes"]


def test_the_server_of_a_serving_check_is_a_sidecar_under_the_restricted_pod_standard() -> None:
    job = Job.from_dict(
        {
            "name": "check",
            "module": "aerotrain.serving.serve_check",
            "store": "s3://bucket/flats",
            "run": "manual",
            "task": "serve_check",
            "replicas": [{"role": "chief", "pod": server_pod("tensorflow/serving:2.19.1")}],
        }
    )
    made = PodSettings(namespace="aerotrain", image="a:1")
    [*_, pod] = plan_pods(job, "try-1", made).others
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    [server] = pod["spec"]["initContainers"]
    [replica] = pod["spec"]["containers"]
    assert server["restartPolicy"] == "Always", "so it ends with the replica"
    assert server["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert server["securityContext"]["allowPrivilegeEscalation"] is False
    assert server["securityContext"]["runAsUser"]
    [scratch] = [each for each in replica["volumeMounts"] if each["mountPath"] == "/scratch"]
    assert server["volumeMounts"] == [{**scratch, "readOnly": True}]
    assert {"name": "MODEL_SERVER", "value": "1"} in replica["env"]


def test_the_helm_values_are_valid_settings_and_name_existing_objects() -> None:
    section = VALUES["config"]["aerotrain"]
    assert section.keys() <= {each.name for each in fields(Settings)}
    assert section["launcher"] == "kubernetes"
    assert section["namespace"] == KUSTOMIZATION["namespace"]
    accounts = [each["metadata"]["name"] for each in documents("serviceaccount.yaml")]
    assert section["service_account"] in accounts
    lock = (DEPLOY.parent / "requirements.lock").read_text()
    assert f"\napache-airflow=={VALUES['airflowVersion']} " in lock
    connections = {each["envName"] for each in VALUES["secret"]} | {
        each["name"] for each in VALUES["env"]
    }
    for setting in ("store_conn_id", "kubernetes_conn_id"):
        assert f"AIRFLOW_CONN_{section[setting].upper()}" in connections


def test_no_file_holds_a_credential() -> None:
    for file in filter(Path.is_file, DEPLOY.rglob("*")):
        assert "kind: Secret" not in file.read_text()
    assert all("value" not in each for each in VALUES["secret"])


def _accesses(manifest: dict[str, Any]) -> Iterator[Access]:
    for rule in manifest.get("rules", ()):
        for group in rule["apiGroups"]:
            for name in rule["resources"]:
                resource, _, subresource = name.partition("/")
                for verb in rule["verbs"]:
                    yield Access(verb, group, resource, subresource)


def test_the_images_have_the_entry_points_by_which_airflow_finds_provider_and_plugin(
    tmp_path: Path,
) -> None:
    root = Path(__file__).parent.parent
    command = [sys.executable, root / "images" / "metadata", root / "pyproject.toml", tmp_path]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    [written] = distributions(name="aerotrain", path=[str(tmp_path)])
    installed = distribution("aerotrain")
    assert written.version == installed.version
    assert set(written.entry_points) == set(installed.entry_points)
