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
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}

#: The default message of a failure that a test orders.
MESSAGES = {
    401: "Unauthorized",
    409: 'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; '
    "please apply your changes to the latest version and try again",
    410: "too old resource version: 1 (1000)",
    500: "Internal error occurred: etcdserver: leader changed",
    503: "the server is currently unable to handle the request",
    504: "etcdserver: request timed out",
}


@dataclass
class ApiError(Exception):
    """A request ended with an error response."""

    code: int
    message: str
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    plain: bool = False

    def status(self) -> dict[str, Any]:
        """The ``Status`` object of the error."""
        said: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason or REASONS[self.code],
            "code": self.code,
        }
        if self.details:
            said["details"] = dict(self.details)
        return said

    def body(self) -> tuple[str, bytes]:
        """The content type and the body of the response."""
        if self.code == 429 or self.plain:  # API priority and fairness responds in plain text
            return "text/plain; charset=utf-8", f"{self.message}\n".encode()
        return "application/json", json.dumps(self.status()).encode() + b"\n"


def not_found(plural: str, name: str, group: str = "") -> ApiError:
    details = {"name": name, "group": group, "kind": plural} if group else {}
    qualified = f"{plural}.{group}" if group else plural
    return ApiError(
        404, f'{qualified} "{name}" not found', details=details or {"name": name, "kind": plural}
    )


def no_such_path() -> ApiError:
    return ApiError(404, "404 page not found", plain=True)


def already_exists(plural: str, name: str, being_deleted: bool) -> ApiError:
    message = f'{plural} "{name}" already exists'
    if being_deleted:
        message = f"object is being deleted: {message}"
    return ApiError(409, message, "AlreadyExists", {"name": name, "kind": plural})


def modified(plural: str, name: str) -> ApiError:
    details = {"name": name, "kind": plural}
    return ApiError(409, MESSAGES[409].format(resource=plural, name=name), details=details)


def precondition(kind: str, name: str, what: str, expected: str, actual: str) -> ApiError:
    happened = "deleted and then recreated" if what == "UID" else "modified"
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {kind} "{name}": the {what} in the precondition '
        f"({expected}) does not match the {what} in record ({actual}). The object might have "
        f"been {happened}",
        details={"name": name, "kind": kind},
    )


def forbidden(
    user: str, verb: str, resource: str, group: str, namespace: str, name: str
) -> ApiError:
    subject = f'{resource} "{name}"' if name else resource
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    return ApiError(
        403,
        f'{subject} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
        f'in API group "{group}" {where}',
        details={"name": name, "kind": resource} if name else {"kind": resource},
    )


def invalid(kind: str, name: str, causes: list[tuple[str, str, str]]) -> ApiError:
    """The error 422 of an object; ``causes`` are triples: the field, the reason, the sentence."""
    sentences = [f"{where}: {sentence}" for where, _, sentence in causes]
    joined = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    return ApiError(
        422,
        f'{kind} "{name}" is invalid: {joined}',
        details={
            "name": name,
            "kind": kind,
            "causes": [
                {"reason": reason, "message": sentence, "field": where}
                for where, reason, sentence in causes
            ],
        },
    )


def expired(version: int, oldest: int) -> ApiError:
    return ApiError(410, f"too old resource version: {version} ({oldest})", "Expired")


def ordered(
    code: int, message: str, resource: str, name: str, retry_after: float | None
) -> ApiError:
    """The failure that a test has ordered."""
    if not message:
        message = MESSAGES.get(code, "Too many requests, please try again later.")
        message = message.replace("{resource}", resource).replace("{name}", name)
    if code == 429 and retry_after is None:
        retry_after = 1
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return ApiError(code, message, headers=headers)
