"""The names, labels and annotations of a group of pods, for all modules that write or read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aerotrain.contract.job import ReplicaName

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

#: An annotation of a restarted pod: the restart count.
GENERATION = "aerotrain/generation"

#: The container that runs the replica; templates may add side-cars.
CONTAINER = "replica"


@dataclass(frozen=True)
class Address:
    """The handle of a group: its namespace, its job's name, and the attempt that created it.

    ``uid`` is that of its owner, once created. No other object of the same name has this uid.
    """

    namespace: str
    name: str
    attempt: str
    uid: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.namespace, self.name, self.uid, self.attempt)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of ``str()``."""
        namespace, name, *uid, attempt = text.split("/")
        return cls(namespace, name, attempt, *uid)

    def pod(self, replica: ReplicaName) -> str:
        """The name of a replica's pod."""
        return f"{self.name}-{replica}"


def annotations(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """The annotations of an object; empty if it has none."""
    return manifest["metadata"].get("annotations") or {}


def generation_of(pod: Mapping[str, Any]) -> int:
    """The restart count of the replica in this pod."""
    return int(annotations(pod).get(GENERATION, "0"))
