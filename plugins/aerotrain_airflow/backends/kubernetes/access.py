"""The permissions that the backend needs in its namespace, in one table.

``deploy/role.yaml`` grants exactly these; a test compares the two.
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
    # The owner: created first, read to find its holder, annotated, and deleted with all it owns.
    Access("create", "", "configmaps"),
    Access("get", "", "configmaps"),
    Access("patch", "", "configmaps"),
    Access("delete", "", "configmaps"),
    # What the pods need. Read if the name is taken, to find out whether by this group or by one
    # that is being deleted.
    Access("create", "", "services"),
    Access("get", "", "services"),
    Access("create", "networking.k8s.io", "networkpolicies"),
    Access("get", "networking.k8s.io", "networkpolicies"),
    # The replicas. Deleted individually for a restart, or if a node does not respond.
    Access("create", "", "pods"),
    Access("get", "", "pods"),
    Access("list", "", "pods"),
    Access("watch", "", "pods"),
    Access("delete", "", "pods"),
    Access("get", "", "pods", "log"),
    # Why a pod failed or is waiting.
    Access("list", "", "events"),
)

#: Additional permissions for a Volcano queue.
WITH_VOLCANO: tuple[Access, ...] = (
    Access("create", "scheduling.volcano.sh", "podgroups"),
    Access("get", "scheduling.volcano.sh", "podgroups"),
)


def needed(plan: PodPlan) -> tuple[Access, ...]:
    """The permissions to create, follow and end the group of that plan."""
    has_group = any(manifest["kind"] == "PodGroup" for manifest in plan.others)
    return REQUIRED + (WITH_VOLCANO if has_group else ())
