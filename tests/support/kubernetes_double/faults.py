"""Faults that a test orders, and the record of requests."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from support.kubernetes_double.answers import ApiError, ordered


@dataclass
class Request:
    """One request as it arrived; ``resource`` includes the subresource, as in ``pods/log``."""

    verb: str
    resource: str
    namespace: str
    name: str
    path: str
    query: dict[str, str]
    at: float = field(default_factory=time.monotonic)
    status: int | None = None  # of the response, once there is one

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.namespace}/{self.name} -> {self.status}"


@dataclass
class Fault:
    """One order: what happens to the next ``times`` requests that it matches.

    ``status`` is the code of the response, 0 if the request is carried out as usual. ``seconds`` is
    the delay before it. ``done`` means that the request was carried out, and only its response got
    lost. ``drop`` breaks the connection instead of responding.
    """

    status: int = 0
    verb: str = ""
    resource: str = ""
    name: str = ""
    where: Callable[[Request], bool] | None = None
    times: int = 1
    seconds: float = 0.0
    message: str = ""
    retry_after: float | None = None
    done: bool = False
    drop: bool = False
    fits: int = 0  # how many requests it has matched so far

    def takes(self, request: Request) -> bool:
        return (
            self.fits < self.times
            and self.verb in ("", request.verb)
            and self.resource in ("", request.resource)
            and self.name in ("", request.name)
            and (self.where is None or self.where(request))
        )

    def refusal(self, request: Request) -> ApiError:
        return ordered(self.status, self.message, request.resource, request.name, self.retry_after)


class Faults:
    """The orders that are still to be carried out, oldest first."""

    def __init__(self) -> None:
        self.ordered: list[Fault] = []

    def next(self, request: Request) -> Fault | None:
        """The order that matches this request; it counts the request."""
        for fault in self.ordered:
            if fault.takes(request):
                fault.fits += 1
                return fault
        return None
