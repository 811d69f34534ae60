"""The replicas of a job: their roles and names, how many there are, and what each gets."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.validation import Count, CountOrZero, Limits, Positive, Validated

#: A number of bytes: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_Quantity = Annotated[
    str,
    Limits(
        pattern=r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?",
        form="a quantity as Kubernetes writes it, such as 512Mi or 4Gi",
    ),
]

#: https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources
_ResourceName = Annotated[
    str,
    Limits(
        pattern=r"[a-z0-9.-]+/[A-Za-z0-9._-]+",
        form="an extended resource of Kubernetes, such as nvidia.com/gpu or amd.com/gpu",
    ),
]


def is_reserved(variable: str) -> bool:
    """Whether the launcher sets that environment variable, so that a description may not."""
    return variable == "TF_CONFIG" or variable.startswith("AEROTRAIN_")


class Role(StrEnum):
    """The task of a replica in its job, by TensorFlow's own names."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    #: A data worker, which reads and transforms records for the others.
    INPUT = "input"


#: The roles of which a job has at most one replica, named by the role alone.
ALONE = frozenset({Role.CHIEF, Role.EVALUATOR})

#: The roles that may run on spot nodes: each replica of the others has what no other one has.
SPOT = (Role.WORKER, Role.INPUT)

#: The number of a job's workers: fixed, or a range in which it may change while the job runs.
SIZE = Limits(
    minimum=0, pattern=r"\d{1,6}(\.\.\d{1,6})?", form='a whole number, or a range such as "2..8"'
)


def range_of(size: int | str) -> tuple[int, int]:
    """The least and the largest number that a size accepts.

    Raises:
        SpecError: it is neither a number nor a range that can be.
    """
    if isinstance(size, bool) or not re.fullmatch(SIZE.pattern, str(size)):
        raise SpecError(f"the number of workers must be {SIZE.form}, got {size!r}")
    least, _, most = str(size).partition("..")
    if most and not int(least):
        raise SpecError(f"a range of workers begins with 1 or more, got {size!r}")
    if int(most or least) < int(least):
        raise SpecError(
            f'the range {size!r} of workers ends before it begins; write "{most}..{least}"'
        )
    return int(least), int(most or least)


#: The roles that make up TensorFlow's cluster.
CLUSTERED = (Role.CHIEF, Role.WORKER, Role.PS)


@dataclass(frozen=True, kw_only=True)
class Resources(Validated):
    """The resources of one replica: cores, bytes of memory in Kubernetes notation, devices.

    The defaults suit a small model on a small cluster. Idle cores beyond them are used.

    ``gpu_resource`` is the name by which Kubernetes knows the kind of GPU, such as ``amd.com/gpu``
    or ``nvidia.com/mig-1g.10gb``. ``shared_memory`` is the part of the memory that /dev/shm may
    take. None leaves it to the platform that runs the replica; a pod with several GPUs gets 1Gi.
    """

    TITLE: ClassVar = "'resources'"

    cpu: Positive = 0.25
    memory: _Quantity = "1536Mi"
    gpu: CountOrZero = 0
    gpu_resource: _ResourceName = "nvidia.com/gpu"
    tpu: CountOrZero = 0
    shared_memory: _Quantity | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec(Validated):
    """One role of a job, and the number of its replicas.

    With ``least`` the number may change while the job runs, between that and ``count``. ``pod`` is
    a Kubernetes pod template for this role. ``spot`` is whether its replicas prefer spot nodes, or
    avoid them; None takes any node. Only a launcher of pods uses these.
    """

    TITLE: ClassVar = "a replica"

    role: Role
    count: Count = 1
    least: Count | None = None
    resources: Resources = field(default_factory=Resources)
    environment: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
    spot: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.role in ALONE and self.count != 1:
            raise SpecError(f"a job has at most one {self.role}, got {self.count}")
        if self.spot and self.role not in SPOT:
            raise SpecError(
                f"spot names the {self.role}, which stays on demand, because no other replica has "
                f"its work or its variables; the roles that may be on spot nodes are "
                f"{' and '.join(SPOT)}"
            )
        try:
            json.dumps(self.pod)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"the pod template of {self.role} cannot be written as JSON: {error}; put dates "
                "and the like in quotes"
            ) from error
        owned = sorted(filter(is_reserved, self.environment))
        if owned:
            raise SpecError(
                f"the environment of {self.role} sets {', '.join(owned)}, which the "
                "launcher sets for each replica; leave it out"
            )

    def where(self) -> str:
        return f"the {self.role}"


@dataclass(frozen=True, order=True, slots=True)
class ReplicaName:
    """One replica of a job: its role, and its index in that role."""

    role: Role
    index: int

    def __str__(self) -> str:
        """The role's name for the roles in ``ALONE``; otherwise role and index."""
        return self.role.value if self.role in ALONE else f"{self.role}-{self.index}"
