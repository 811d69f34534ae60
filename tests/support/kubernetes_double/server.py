"""The API over HTTP: watches, logs and everything else, with the faults that were ordered."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.kubernetes_double import answers
from support.kubernetes_double.api import Access, Api, Target, is_true, read_path, read_selection
from support.kubernetes_double.objects import Kind
from support.kubernetes_double.streams import CUT, Logs, Watches

#: A real server chooses between half an hour and an hour.
WATCH_SECONDS = 1800.0

#: A real server accepts 3 MiB; this one accepts whole jobs from a benchmark at once.
_LONGEST_BODY = 64 * 2**20

Control = Callable[[str, dict[str, Any]], Any]


@dataclass
class Request:
    """One request as it arrived; ``resource`` includes the subresource, as in ``pods/log``."""

    verb: str
    resource: str
    namespace: str
    name: str
    query: dict[str, str]
    status: int | None = None  # of the response, once there is one


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

    def refusal(self) -> answers.ApiError:
        return answers.ApiError(self.status, self.message or answers.MESSAGES[self.status])


def next_fault(ordered: Iterable[Fault], request: Request) -> Fault | None:
    """The oldest order that matches this request; it counts the request."""
    for fault in ordered:
        if fault.takes(request):
            fault.fits += 1
            return fault
    return None


@dataclass
class Server:
    """Listens on a port of loopback, and keeps the port while it refuses connections."""

    api: Api
    access: Access
    watches: Watches
    logs: Logs
    kinds: tuple[Kind, ...]
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    control: Control | None = None  # for a double in a process of its own
    port: int = 0

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._http = web.Server(
            self._handle, request_factory=_request, handler_cancellation=True, access_log=None
        )
        self._listener = await loop.create_server(self._http, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        """Refuse new connections, and break open ones."""
        loop = asyncio.get_running_loop()
        for listening in self._listener.sockets:
            loop.remove_reader(listening.fileno())
        # When asyncio closes a listener, it forgets connections that are accepted and not yet
        # served, and their clients would wait for ever. After three turns of the loop they are
        # among the connections.
        for _ in range(3):
            await asyncio.sleep(0)
        self._listener.close()
        for connection in self._http.connections:
            if connection.transport:
                connection.transport.abort()

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        if self.control and http.path.startswith("/double/"):
            given = await http.json()
            return web.json_response(self.control(http.path.removeprefix("/double/"), given))
        if found := _discovered(http.path, self.kinds):
            return web.json_response(found)
        query = dict(http.query)
        try:
            target = read_path(http.method, http.path, query, self.kinds)
        except answers.ApiError as refusal:
            return _refuse(refusal)
        request = Request(target.verb, target.resource, target.namespace, target.name, query)
        self.requests.append(request)
        try:
            response = await self._answer(http, target, request)
        except answers.ApiError as refusal:
            response = _refuse(refusal)
        request.status = response.status
        return response

    async def _answer(
        self, http: web.BaseRequest, target: Target, request: Request
    ) -> web.StreamResponse:
        body = await http.read()
        fault = next_fault(self.faults, request)
        if fault and not fault.done:
            raise fault.refusal()
        credential = http.headers.get("Authorization", "")
        self.access.check(credential, target.verb, target.kind, target.resource, target.namespace)
        if target.verb == "watch":
            request.status = 200
            since = int(request.query.get("resourceVersion") or 0) or None
            seconds = float(request.query.get("timeoutSeconds") or WATCH_SECONDS)
            selection = read_selection(target, request.query)
            return await _stream(http, self.watches.follow(selection, since, seconds))
        if target.subresource == "log":
            lines = self.logs.read(target.namespace, target.name, request.query)
            request.status = 200
            if is_true(request.query.get("follow", "")):
                return await _stream(http, lines, "text/plain")
            return web.Response(body=b"".join([line async for line in lines]))
        code, encoded = self.api.answer(target, request.query, json.loads(body or b"{}"))
        if fault:
            raise fault.refusal()
        return web.Response(status=code, body=encoded, content_type="application/json")


def _discovered(path: str, kinds: tuple[Kind, ...]) -> dict[str, Any] | None:
    """The versions of a group, or the kinds of one version, by which a client finds Kueue."""
    group, _, version = path.removeprefix("/apis/").partition("/")
    served = [kind for kind in kinds if kind.group == group and version in ("", kind.version)]
    if not group or not served:
        return None
    if version:
        return {"resources": [{"name": kind.plural} for kind in served]}
    return {"versions": [{"version": served[0].version}]}


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=_LONGEST_BODY
    )


async def _stream(
    http: web.BaseRequest, lines: AsyncIterator[bytes], content_type: str = "application/json"
) -> web.StreamResponse:
    """Send the lines as they come; at the mark of a cut, half a line, then disconnect."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(http)
    try:
        async for line in lines:
            if line == CUT:
                if content_type == "application/json":
                    await response.write(b'{"type":"MODIFIED","object":{"kind":"Pod","api')
                if http.transport:
                    http.transport.close()
                break
            await response.write(line)
        with suppress(ConnectionError):
            await response.write_eof()
    except ConnectionError:
        pass  # the client has closed the connection
    return response


def _refuse(refusal: answers.ApiError) -> web.Response:
    content_type, body = refusal.body()
    return web.Response(status=refusal.code, body=body, headers={"Content-Type": content_type})
