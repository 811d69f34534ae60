"""What the launcher of pods has to be allowed in its namespace: one table, and no more.

``deploy/role.yaml`` grants exactly this, and a test says so.
"""

from dataclasses import dataclass

from aerotrain_airflow.backends.kubernetes.plan import PodPlan


@dataclass(frozen=True)
class Access:
    """One verb on one kind of object in a namespace."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource}{f' of {self.group}' if self.group else ''}"


REQUIRED: tuple[Access, ...] = (
    # The owner: made first, asked whose it is, marked, and deleted with all it owns.
    Access("create", "", "configmaps"),
    Access("get", "", "configmaps"),
    Access("patch", "", "configmaps"),
    Access("delete", "", "configmaps"),
    # What the pods need around them. Asked for where the name is taken: by us, or by a set
    # that is on its way out?
    Access("create", "", "services"),
    Access("get", "", "services"),
    Access("create", "networking.k8s.io", "networkpolicies"),
    Access("get", "networking.k8s.io", "networkpolicies"),
    # The replicas. Deleted one by one only where a node does not answer.
    Access("create", "", "pods"),
    Access("get", "", "pods"),
    Access("list", "", "pods"),
    Access("watch", "", "pods"),
    Access("delete", "", "pods"),
    Access("get", "", "pods", "log"),
    # Why a pod failed or waits.
    Access("list", "", "events"),
)

#: What Volcano's queue needs beside.
WITH_VOLCANO: tuple[Access, ...] = (
    Access("create", "scheduling.volcano.sh", "podgroups"),
    Access("get", "scheduling.volcano.sh", "podgroups"),
)


def needed(plan: PodPlan) -> tuple[Access, ...]:
    """What making, following and ending the set of that plan takes."""
    has_group = any(manifest["kind"] == "PodGroup" for manifest in plan.others)
    return REQUIRED + (WITH_VOLCANO if has_group else ())
