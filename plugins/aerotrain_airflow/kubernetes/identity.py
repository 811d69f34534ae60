"""The names, labels and annotations of a group of pods, and which objects belong to it.

Labels and names are not reliable: users copy pods, restore backups, or have used a name first. A
uid is unique. So a group is identified by its owner's uid, its objects have that uid in their owner
references, and no other object is used, changed or deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aerotrain.contract.replicas import ReplicaName

Manifest = Mapping[str, Any]

#: The label of all objects of a group, and the labels that distinguish its pods.
JOB_LABEL = "aerotrain/job"
ROLE_LABEL = "aerotrain/role"
INDEX_LABEL = "aerotrain/index"

#: Annotations of the group's owner: the attempt that created it, the description, the holder,
#: whether it was created completely, and how far its logs were read.
ATTEMPT = "aerotrain/attempt"
DESCRIPTION = "aerotrain/description"
HOLDER = "aerotrain/holder"
STARTED = "aerotrain/started"
POSITIONS = "aerotrain/positions"

#: The same: the queue that admits the group, as ``kueue:NAME``.
QUEUE = "aerotrain/queue"

#: An annotation of a restarted pod: the restart count.
RESTARTS = "aerotrain/restarts"

#: The container that runs the replica; templates may add side-cars.
CONTAINER = "replica"


@dataclass(frozen=True)
class Handle:
    """The handle of a group: its namespace, its job's name, and the attempt that created it.

    ``uid`` is that of its owner, once created. No other object of the same name has this uid.
    """

    namespace: str
    name: str
    attempt: str
    uid: str = ""

    @classmethod
    def of(cls, owner: Manifest) -> Self:
        """The handle of the group with this owner."""
        metadata = owner["metadata"]
        attempt = annotations(owner)[ATTEMPT]
        return cls(metadata["namespace"], metadata["name"], attempt, metadata["uid"])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of ``str()``."""
        namespace, name, *uid, attempt = text.split("/")
        return cls(namespace, name, attempt, *uid)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.namespace, self.name, self.uid, self.attempt)))

    def is_of(self, owner: Manifest) -> bool:
        """Whether a ConfigMap is the owner of this group."""
        return (
            is_an_owner(owner, self.name)
            and annotations(owner)[ATTEMPT] == self.attempt
            and self.uid in ("", uid_of(owner))
        )


def pod_name(job: str, replica: ReplicaName, restarts: int = 0) -> str:
    """The name of a replica's pod at this restart count.

    Each has a name of its own, so that no restart waits for the name of a pod that is kept, by an
    unresponsive node or by a finalizer.
    """
    return f"{job}-{replica}{f'-r{restarts}' if restarts else ''}"


def without_restarts(pod: Manifest) -> str:
    """The name that the replica's pod had before its restarts."""
    name: str = pod["metadata"]["name"]
    return name.removesuffix(f"-r{restarts_of(pod)}")


def annotations(manifest: Manifest) -> Mapping[str, str]:
    """The annotations of an object; empty if it has none."""
    return manifest["metadata"].get("annotations") or {}


def restarts_of(pod: Manifest) -> int:
    """The restart count of the replica in this pod."""
    return int(annotations(pod).get(RESTARTS, "0"))


def uid_of(manifest: Manifest) -> str:
    """The uid of an object from the API."""
    uid: str = manifest["metadata"]["uid"]
    return uid


def is_being_deleted(manifest: Manifest) -> bool:
    return "deletionTimestamp" in manifest["metadata"]


def owned(manifest: Manifest, owner: Manifest) -> dict[str, Any]:
    """The manifest as one of the group with this owner."""
    metadata = manifest["metadata"]
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["metadata"]["name"],
        "uid": uid_of(owner),
    }
    return {**manifest, "metadata": {**metadata, "ownerReferences": [reference]}}


def is_owned_by(manifest: Manifest, uid: str) -> bool:
    """Whether the object belongs to the group whose owner has this uid."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == uid for each in owners)


def is_an_owner(manifest: Manifest, name: str) -> bool:
    """Whether a ConfigMap is the owner of a group of that job, as a task creates it."""
    labels = manifest["metadata"].get("labels") or {}
    needed = {ATTEMPT, DESCRIPTION, HOLDER}
    return labels.get(JOB_LABEL) == name and needed <= annotations(manifest).keys()


def in_the_way(manifest: Manifest, namespace: str) -> str:
    """The error message for a foreign object that has one of the group's names."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return (
        f"there is a {kind} {name} in {namespace} that is not one of this job's objects; delete "
        "or rename it, if it is yours"
    )
