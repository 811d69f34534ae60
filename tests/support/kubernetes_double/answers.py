"""Error responses of the API server: ``Status`` objects, worded as the real ones are."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The default reason of each code.
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}

#: The message of a failure that a test orders without one.
MESSAGES = {
    429: "Too many requests, please try again later.",
    500: "Internal error occurred: etcdserver: leader changed",
    503: "the server is currently unable to handle the request",
}


@dataclass
class ApiError(Exception):
    """A request ended with an error response."""

    code: int
    message: str
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def status(self) -> dict[str, Any]:
        """The ``Status`` object of the error."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason or REASONS[self.code],
            "details": dict(self.details),
            "code": self.code,
        }

    def body(self) -> tuple[str, bytes]:
        """The content type and the body of the response."""
        if self.code == 429:  # API priority and fairness responds in plain text
            return "text/plain", self.message.encode()
        return "application/json", json.dumps(self.status()).encode()


def not_found(plural: str, name: str) -> ApiError:
    return ApiError(404, f'{plural} "{name}" not found', details={"name": name, "kind": plural})


def no_such_path() -> ApiError:
    return ApiError(404, "404 page not found")


def already_exists(plural: str, name: str) -> ApiError:
    message = f'{plural} "{name}" already exists'
    return ApiError(409, message, "AlreadyExists", {"name": name, "kind": plural})


def modified(plural: str, name: str, what: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {plural} "{name}": {what}'
    return ApiError(409, message, details={"name": name, "kind": plural})


def forbidden(user: str, verb: str, resource: str, group: str, namespace: str) -> ApiError:
    message = (
        f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
        f'in API group "{group}" in the namespace "{namespace}"'
    )
    return ApiError(403, message, details={"kind": resource})


def expired(version: int) -> ApiError:
    return ApiError(410, f"too old resource version: {version}", "Expired")
