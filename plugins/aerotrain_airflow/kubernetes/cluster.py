"""A client of the Kubernetes API: plain JSON in and out, over a connection of Airflow.

It does not use the models of the client library: to build them takes longer than everything else
that a trigger does.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
from aiohttp import ClientTimeout

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError, backoff
from aerotrain.launch.backend import RetryLaterError
from aerotrain_airflow.kubernetes.client import Client, client_of
from aerotrain_airflow.kubernetes.lines import LONGEST, moment, readable, split_lines

Manifest = Mapping[str, Any]
T = TypeVar("T")

#: Requests per group that wait for an answer: its watch, its log streams, and a reserve.
_WAITING = 64

#: Objects per page of a list.
_PAGE = 200

#: In bytes: a read from a stream, the longest timestamp before a line, and the largest event, which
#: is several times the maximum size of an object.
_PIECE, _LONGEST_STAMP, _LONGEST_EVENT = 64 * 1024, 64, 8 << 20

#: Seconds until an answer, and until a connection.
_ANSWER, _CONNECT = 30.0, 5.0

#: Seconds between two retries, first and at most.
_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

#: Status codes after which to retry: https://kubernetes.io/docs/reference/using-api/api-concepts/
_LATER = {401, 408, 429, 500, 502, 503, 504}

#: The API path of each kind: its group and version, and its plural. Kueue's version is discovered,
#: because its releases serve different ones.
_KUEUE = "/apis/kueue.x-k8s.io"
_PLACES = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Service": ("/api/v1", "services"),
    "Pod": ("/api/v1", "pods"),
    "Node": ("/api/v1", "nodes"),
    "Event": ("/api/v1", "events"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Workload": (_KUEUE, "workloads"),
    "LocalQueue": (_KUEUE, "localqueues"),
}

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class ApiError(AerotrainError):
    """The API rejected a request; ``status`` is that of HTTP, ``reason`` and ``detail`` the API's.

    Its subclasses say whether another attempt may help.
    """

    def __init__(self, status: int, reason: str, detail: str, message: str) -> None:
        self.status = status
        self.reason = reason
        self.detail = detail
        super().__init__(message)


class NoRoomError(ApiError, RetryLaterError):
    """A quota is used up."""


class RejectedError(ApiError, FinalError):
    """The request is wrong, or never allowed."""


class FailedError(ApiError, TemporaryError):
    """The API failed, or has stopped to allow the request."""


class UnavailableError(RetryLaterError):
    """The API gave no usable answer within the caller's timeout."""


def api_error(status: int, found: Mapping[str, Any], namespace: str) -> ApiError:
    """The error for an answer of the API with this ``status``, with what to do about it."""
    reason, detail = found.get("reason") or "", found.get("message") or ""
    kind = (found.get("details") or {}).get("kind")

    error: type[ApiError] = RejectedError
    # A used-up quota has the status and reason of a missing permission.
    if "exceeded quota" in detail:
        error = NoRoomError
        said = f"namespace {namespace} has no room for the job: {detail}; wait, or ask for less"
    elif "failed quota" in detail:
        said = (
            f"a quota of namespace {namespace} limits what the pods do not set: {detail}; set it "
            "for the container `replica` in a pod template (deploy/README.md, Quotas)"
        )
    elif _is_missing_permission(status, detail):
        error = FailedError
        said = f"the cluster has not allowed it for a while: {detail}; apply deploy/role.yaml again"
    elif status == 403:
        said = f"the cluster does not allow it: {detail}; see deploy/ for what is needed"
    elif status == 404 and kind == "namespaces":
        said = f"there is no namespace {namespace}; create it, or set [aerotrain] namespace"
    elif status in (400, 404, 422):
        said = f"the cluster rejects the job's objects: {detail}"
    else:
        error, said = FailedError, f"the cluster failed a request: {status} {reason}: {detail}"
    return error(status, reason, detail, said)


def _is_missing_permission(status: int, detail: str) -> bool:
    """Whether the account may not do this: not what admission says of an object."""
    return status == 403 and " cannot " in detail and " resource " in detail


class Cluster:
    """One namespace of the Kubernetes API behind an Airflow connection of the type ``kubernetes``.

    It is empty for objects that are in none, as nodes. ``retry_for`` is for how many seconds an
    unavailable API is retried.
    """

    def __init__(self, conn_id: str, namespace: str, *, retry_for: float) -> None:
        self.namespace = namespace
        self.conn_id = conn_id
        self._retry_for = retry_for
        self._clients = AsyncExitStack()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._room = asyncio.Semaphore(_WAITING)
        self._versions: dict[str, str] = {}  # by kind, those that were found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._clients.aclose()

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> dict[str, Any] | None:
        """Create an object and return it, or None if its name is taken.

        With ``dry_run`` it is only what would be created. The API rejects fields that it does not
        define, such as one misspelt in a template.
        """
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        try:
            return await self._json("POST", await self._path(manifest["kind"]), query, manifest)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return None
            raise

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist."""
        async with _missing_allowed():
            return await self._json("GET", await self._path(kind, name))
        return None

    async def list(self, kind: str, *, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        """All objects that match the selectors."""
        pages = self.pages(kind, labels=labels, fields=fields)
        return [each async for page, _ in pages for each in page]

    async def pages(
        self, kind: str, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[Sequence[dict[str, Any]], str]]:
        """The pages of a list, each with the version from which to watch after the last.

        Other tasks of the event loop run between pages, and the list is never in memory as a whole.
        """
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(_PAGE)}
        while True:
            found = await self._json("GET", await self._path(kind), query)
            metadata = found["metadata"]
            yield found.get("items") or [], metadata.get("resourceVersion", "")
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def patch(
        self, kind: str, name: str, uid: str, version: str = "", **change: Manifest
    ) -> dict[str, Any]:
        """Apply a merge patch (RFC 7386) to the object with this uid.

        If the object has another uid, the API returns 409, or 422 without a ``version``. If it was
        changed since ``version``, it returns 409.
        """
        identity = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body = {**change, "metadata": {**change.get("metadata", {}), **identity}}
        return await self._json("PATCH", await self._path(kind, name), body=body)

    async def delete(
        self, kind: str, name: str, uid: str, version: str = "", *, force: bool = False
    ) -> None:
        """Delete the object, if it exists, and in the background all that it owns.

        If it has another uid, or was changed since ``version``, the API returns 409 and keeps it.
        ``force`` deletes the object without waiting for its node.
        """
        conditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": conditions}
        if force:
            body["gracePeriodSeconds"] = 0
        async with _missing_allowed():
            await self._json("DELETE", await self._path(kind, name), body=body)

    async def may(self, **attributes: str) -> bool:
        """Whether the current account has the permission with these attributes, here."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.namespace, **attributes}},
        }
        answer = await self._json("POST", _REVIEWS, body=review)
        return bool(answer["status"].get("allowed"))

    async def watch(
        self, kind: str, *, labels: str, version: str, seconds: int
    ) -> AsyncGenerator[dict[str, Any]]:
        """The events since ``version``, for ``seconds``; without retries.

        Raises:
            ApiError: the version is too old (410), or the watch was rejected.
            UnavailableError: the connection was lost, or received no data.
        """
        query = {
            "watch": "true",
            "labelSelector": labels,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        pieces = self._pieces(await self._path(kind), query, silence=seconds + 10.0)
        async for line, cut in split_lines(pieces, _LONGEST_EVENT):
            if cut:
                raise UnavailableError(f"a watch showed an object of {len(line) + cut} bytes")
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise api_error(status.get("code", 500), status, self.namespace)
            yield event

    async def log(
        self, pod: str, *, container: str, since: str = "", follow: bool = False
    ) -> AsyncIterator[tuple[str, str]]:
        """The lines of a container, each with its ``moment``.

        ``since`` is a time from an earlier line; the API only compares seconds, so lines of that
        second are repeated. A line that is too long is cut, with a note at its end. An incomplete
        last line is returned only if the log is not followed; otherwise the rest of it may still
        come.

        Raises:
            ApiError, UnavailableError: as for ``watch``; also if a container sends what is no line.
        """
        query = {"container": container, "timestamps": "true", "follow": str(follow).lower()}
        if since:
            query["sinceTime"] = since[:19] + "Z"
        pieces = self._pieces(await self._path("Pod", pod) + "/log", query, silence=None)
        longest = LONGEST + _LONGEST_STAMP
        async for line, cut in split_lines(pieces, longest, incomplete=not follow):
            stamp, _, text = line.partition(b" ")
            at = moment(stamp.decode(errors="replace"))
            if not at:
                raise UnavailableError(readable(line, cut, 300))
            yield at, readable(text, cut)

    async def _json(
        self, method: str, path: str, query: Mapping[str, str] = {}, body: Manifest | None = None
    ) -> dict[str, Any]:
        """Send a request and return the answer.

        Retries for ``retry_for`` seconds after the first failure, and at least once: this process
        may have been stopped during the first one.
        """
        until = float("inf")
        pauses = backoff(_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                response = await self._ask(method, path, query, body, ClientTimeout(_ANSWER))
                async with response:
                    return await self._answer(response)
            except ApiError as error:
                # A role is replaced in two steps, without any permission between them.
                is_withdrawn = _is_missing_permission(error.status, error.detail)
                if error.status not in _LATER and not is_withdrawn:
                    raise
                trouble: Exception = error if is_withdrawn else _unavailable(error)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                trouble = _unavailable(error)
            pause, now = next(pauses), time.monotonic()
            until = min(until, now + self._retry_for)
            if now + pause > until:
                raise trouble
            await asyncio.sleep(pause)

    async def _pieces(
        self, path: str, query: Mapping[str, str], *, silence: float | None
    ) -> AsyncIterator[bytes]:
        """What a stream sends, which may send nothing for ``silence`` seconds."""
        try:
            timeout = ClientTimeout(connect=_CONNECT, sock_connect=_CONNECT, sock_read=silence)
            response = await self._ask("GET", path, query, None, timeout)
            async with response:
                if response.status >= 400:
                    await self._answer(response)
                async for piece in response.content.iter_chunked(_PIECE):
                    yield piece
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _unavailable(error) from error

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Manifest | None,
        timeout: ClientTimeout,
    ) -> aiohttp.ClientResponse:
        client = await self._connected()
        async with self._room:
            await client.turn()
            response = await client.request(method, path, query, body, timeout)
        if response.status == 401 and client is self._client:
            client.forget()
            self._client = None  # the next request reads the credential again
        return response

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await self._clients.enter_async_context(client_of(self.conn_id))
            return self._client

    async def _path(self, kind: str, name: str = "") -> str:
        group, plural = _PLACES[kind]
        if group == _KUEUE:
            group = self._versions.get(kind) or await self._discovered(kind)
        where = f"namespaces/{quote(self.namespace, safe='')}/" if self.namespace else ""
        path = f"{group}/{where}{plural}"
        return f"{path}/{quote(name, safe='')}" if name else path

    async def _discovered(self, kind: str) -> str:
        """The group of a kind with the first version that has it; the preferred one comes first."""
        group, plural = _PLACES[kind]
        for each in (await self._json("GET", group))["versions"]:
            path = f"{group}/{each['version']}"
            if plural in {there["name"] for there in (await self._json("GET", path))["resources"]}:
                self._versions[kind] = path
                return path
        raise api_error(404, {"message": f"{group} has no {plural}"}, self.namespace)

    async def _answer(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        text = await response.read()
        if self._client is not None:
            await self._client.turn()
        try:
            found = json.loads(text)
        except ValueError:
            found = {"message": text[:300].decode(errors="replace")}
        if response.status >= 400:
            raise api_error(response.status, {"reason": response.reason, **found}, self.namespace)
        return found


@asynccontextmanager
async def _missing_allowed() -> AsyncIterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


def _unavailable(error: Exception) -> UnavailableError:
    said = getattr(error, "detail", "") or f"{error}" or type(error).__name__
    return UnavailableError(f"the Kubernetes API does not answer: {said}")


async def together(works: Iterable[Coroutine[Any, Any, T]], at_once: int = 1000) -> list[T]:
    """The results of all, run concurrently; the first failure cancels the others and is raised."""
    room = asyncio.Semaphore(at_once)

    async def run(work: Coroutine[Any, Any, T]) -> T:
        async with room:
            return await work

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(work)) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
