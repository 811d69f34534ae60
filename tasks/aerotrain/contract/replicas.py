"""The replicas of a job: their roles and names, how many there are, and what each gets."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.options import check_types

#: A number of bytes: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?")


def is_reserved(variable: str) -> bool:
    """Whether the launcher sets that environment variable, so that a description may not."""
    return variable == "TF_CONFIG" or variable.startswith("AEROTRAIN_")


class Role(StrEnum):
    """The task of a replica in its job, by TensorFlow's own names."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    #: The two roles of tf.data service: input replicas read and transform records for the others,
    #: and the dispatcher gives out the input replicas' addresses.
    INPUT = "input"
    DISPATCHER = "dispatcher"


#: The roles of which a job has at most one replica, named by the role alone.
ALONE = frozenset({Role.CHIEF, Role.EVALUATOR, Role.DISPATCHER})

#: The roles that make up TensorFlow's cluster.
CLUSTERED = (Role.CHIEF, Role.WORKER, Role.PS)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of one replica: cores, bytes of memory in Kubernetes notation, devices.

    The defaults suit a small model on a small cluster. Idle cores beyond them are used.

    ``shared_memory`` is the part of the memory that /dev/shm may take; None leaves it to the
    platform that runs the replica.
    """

    TITLE: ClassVar = "'resources'"

    cpu: float = 0.25
    memory: str = "1536Mi"
    gpu: int = 0
    tpu: int = 0
    shared_memory: str | None = None

    def __post_init__(self) -> None:
        check_types(
            self, cpu=(int, float), memory=str, gpu=int, tpu=int, shared_memory=(str, type(None))
        )
        for name, quantity in (("memory", self.memory), ("shared_memory", self.shared_memory)):
            if quantity is not None and not _QUANTITY.fullmatch(quantity):
                raise SpecError(
                    f"{name} is {quantity!r}; write it as Kubernetes does, such as 512Mi or 4Gi"
                )
        if self.cpu <= 0 or self.gpu < 0 or self.tpu < 0:
            raise SpecError(
                f"a replica asks for cpu={self.cpu}, gpu={self.gpu} and tpu={self.tpu}; "
                "cpu must be above zero, gpu and tpu not below it"
            )


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """One role of a job, and the number of its replicas.

    ``pod`` is a Kubernetes pod template for this role. Only a launcher of pods uses it.
    """

    TITLE: ClassVar = "a replica"

    role: Role
    count: int = 1
    resources: Resources = field(default_factory=Resources)
    environment: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self, environment=Mapping, pod=Mapping)
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise SpecError(f"the count of {self.role} must be 1 or more, got {self.count!r}")
        if self.role in ALONE and self.count != 1:
            raise SpecError(f"a job has at most one {self.role}, got {self.count}")
        try:
            json.dumps(self.pod)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"the pod template of {self.role} cannot be written as JSON: {error}; put dates "
                "and the like in quotes"
            ) from error
        for name, value in self.environment.items():
            if not isinstance(value, str):
                raise SpecError(
                    f"the environment of {self.role} sets {name} to {value!r}; give it a string"
                )
        owned = sorted(filter(is_reserved, self.environment))
        if owned:
            raise SpecError(
                f"the environment of {self.role} sets {', '.join(owned)}, which the "
                "launcher sets for each replica; leave it out"
            )


@dataclass(frozen=True, order=True)
class ReplicaName:
    """One replica of a job: its role, and its index in that role."""

    role: Role
    index: int

    def __str__(self) -> str:
        """The role's name for the roles in ``ALONE``; otherwise role and index."""
        return self.role.value if self.role in ALONE else f"{self.role}-{self.index}"
