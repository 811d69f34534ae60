"""Faults that a test orders, and the record of requests."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from support.kubernetes_double.answers import MESSAGES, ApiError


@dataclass
class Request:
    """One request as it arrived; ``resource`` includes the subresource, as in ``pods/log``."""

    verb: str
    resource: str
    namespace: str
    name: str
    query: dict[str, str]
    at: float = field(default_factory=time.monotonic)
    status: int | None = None  # of the response, once there is one

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.namespace}/{self.name} -> {self.status}"


@dataclass
class Fault:
    """One order: the next ``times`` requests that it matches fail with ``status``.

    ``done`` means that the request was carried out, and only its response got lost.
    """

    status: int
    verb: str = ""
    resource: str = ""
    times: int = 1
    message: str = ""
    done: bool = False
    fits: int = 0  # how many requests it has matched so far

    def takes(self, request: Request) -> bool:
        return (
            self.fits < self.times
            and self.verb in ("", request.verb)
            and self.resource in ("", request.resource)
        )

    def refusal(self) -> ApiError:
        return ApiError(self.status, self.message or MESSAGES[self.status])


def next_fault(ordered: Iterable[Fault], request: Request) -> Fault | None:
    """The oldest order that matches this request; it counts the request."""
    for fault in ordered:
        if fault.takes(request):
            fault.fits += 1
            return fault
    return None
