"""How a set of pods is called and marked, in one place for all who write or read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from aerotrain.contract.job import ReplicaName

#: The label that all objects of a set carry, and those that tell its pods apart.
JOB_LABEL = "aerotrain/job"
ROLE_LABEL = "aerotrain/role"
INDEX_LABEL = "aerotrain/index"

#: Annotations of the set's owner: which launch made it, of what, whose it is now, whether all
#: of it was made, and how far its logs were read.
ATTEMPT = "aerotrain/attempt"
DESCRIPTION = "aerotrain/description"
HOLDER = "aerotrain/holder"
STARTED = "aerotrain/started"
POSITIONS = "aerotrain/positions"

#: An annotation of a pod that is not the first of its replica: how often it came back.
GENERATION = "aerotrain/generation"

#: The container that runs the replica, beside whatever side-cars a template adds.
CONTAINER = "replica"


@dataclass(frozen=True)
class Address:
    """Where a set is: its namespace, its job's name, and the launch that made it.

    ``uid`` is its owner's, once that was made: no other object of its name ever has it.
    """

    namespace: str
    name: str
    attempt: str
    uid: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.namespace, self.name, self.uid, self.attempt)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str()`` wrote."""
        namespace, name, *uid, attempt = text.split("/")
        return cls(namespace, name, attempt, *uid)

    def pod(self, replica: ReplicaName) -> str:
        """The name of a replica's pod."""
        return f"{self.name}-{replica}"


def annotations(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """The annotations of an object, which may have none."""
    return manifest["metadata"].get("annotations") or {}


def generation_of(pod: Mapping[str, Any]) -> int:
    """How often the replica came back until it was this pod."""
    return int(annotations(pod).get(GENERATION, "0"))
