"""Spot nodes, which a cloud may take back: how pods choose or avoid them, and its notices."""

from collections.abc import Mapping
from typing import Any

#: The label of spot nodes, and the taint that equals it where one is set: always in AKS, by default
#: in GKE's Autopilot, and where a Karpenter NodePool or an administrator has it.
LABELS: Mapping[str, str] = {
    # https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms
    "cloud.google.com/gke-spot": "true",
    # https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html
    "eks.amazonaws.com/capacityType": "SPOT",
    # https://learn.microsoft.com/azure/aks/spot-node-pool
    "kubernetes.azure.com/scalesetpriority": "spot",
    # https://karpenter.sh/docs/concepts/scheduling/
    "karpenter.sh/capacity-type": "spot",
}

#: The taint of a node that was shut down: nothing on it can end by itself.
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"

#: The taints of a node that is about to leave, by who sets them. Each drains the node itself, but
#: some do so later, or not at all.
NOTICES = (
    # https://github.com/aws/aws-node-termination-handler
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/rebalance-recommendation",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/scheduled-maintenance",
    # https://cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu
    "cloud.google.com/impending-node-termination",
    # https://learn.microsoft.com/azure/aks/node-auto-drain
    "remediator.kubernetes.azure.com/unschedulable",
    # https://karpenter.sh/docs/concepts/disruption/
    "karpenter.sh/disrupted",
    # https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler
    "ToBeDeletedByClusterAutoscaler",
    # https://kubernetes.io/docs/reference/labels-annotations-taints/
    OUT_OF_SERVICE,
)

#: Of 100: less than that of the node that a restarted replica avoids.
_WEIGHT = 50


def placement(spot: bool | None) -> dict[str, Any]:
    """The fields of a pod's spec that let it prefer spot nodes, or avoid them; none for None.

    To prefer is enough, because it may be that no spot node is left. To avoid is required: what all
    replicas need would otherwise be on a spot node as soon as the other nodes are full.
    """
    if spot is None:
        return {}
    if not spot:
        others = [_expression(key, "NotIn", value) for key, value in LABELS.items()]
        terms = {"nodeSelectorTerms": [{"matchExpressions": others}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        return {"affinity": {"nodeAffinity": required}}
    preferred = [
        {"weight": _WEIGHT, "preference": {"matchExpressions": [_expression(key, "In", value)]}}
        for key, value in LABELS.items()
    ]
    affinity = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    return {
        "affinity": {"nodeAffinity": affinity},
        "tolerations": [
            {"key": key, "operator": "Equal", "value": value} for key, value in LABELS.items()
        ],
    }


def notice_of(node: Mapping[str, Any]) -> str:
    """The taint that says that a node is about to leave; empty if none does."""
    taints = [each["key"] for each in node["spec"].get("taints") or ()]
    return next((each for each in NOTICES if each in taints), "")


def _expression(key: str, operator: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": [value]}
