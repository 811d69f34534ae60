"""The API over HTTP: watches, logs and everything else, with the faults that were ordered."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.kubernetes_double import answers
from support.kubernetes_double.access import Access
from support.kubernetes_double.api import Api
from support.kubernetes_double.faults import Fault, Faults, Request
from support.kubernetes_double.kinds import (
    Kind,
    Target,
    discovery,
    is_true,
    read_fields,
    read_path,
    read_selector,
)
from support.kubernetes_double.logs import Logs
from support.kubernetes_double.nodes import Tempo
from support.kubernetes_double.watches import CUT, Watch, Watches

#: A real server chooses between half an hour and an hour.
WATCH_SECONDS = 1800.0

#: A real server accepts 3 MiB; this one accepts whole jobs from a benchmark at once.
_LONGEST_BODY = 64 * 2**20

Control = Callable[[str, dict[str, Any]], Any]


@dataclass
class Server:
    """Listens on a port of loopback, and keeps the port while it refuses connections."""

    api: Api
    access: Access
    watches: Watches
    logs: Logs
    kinds: tuple[Kind, ...]
    tempo: Tempo
    faults: Faults = field(default_factory=Faults)
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
        query = dict(http.query)
        found = discovery(http.path, self.kinds) if http.method == "GET" else None
        if found is not None:
            return web.json_response(found)
        if http.path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        if self.control and http.path.startswith("/double/"):
            given = await http.json()
            return web.json_response(self.control(http.path.removeprefix("/double/"), given))
        try:
            target = read_path(http.method, http.path, query, self.kinds)
        except answers.ApiError as refusal:
            return _refuse(refusal)
        request = Request(
            target.verb, target.resource, target.namespace, target.name, http.path, query
        )
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
        fault = self.faults.next(request)
        if fault:
            await asyncio.sleep(fault.seconds)
            if not fault.done:
                _fail(http, fault, request)
        self.access.check(
            http.headers.get("Authorization", ""),
            target.verb,
            target.kind,
            target.resource,
            (target.namespace, target.name),
        )
        if target.verb == "watch":
            request.status = 200
            return await self._watch(http, target, request.query)
        if target.subresource == "log":
            return await self._log(http, target, request)
        if target.verb == "patch" and "merge-patch+json" not in http.content_type:
            raise answers.ApiError(
                415,
                "the body of the request was in an unknown format - accepted media types include: "
                "application/merge-patch+json, application/strategic-merge-patch+json",
            )
        code, encoded = self.api.answer(target, request.query, _read(body))
        if fault:
            _fail(http, fault, request)
        return web.Response(status=code, body=encoded, content_type="application/json")

    async def _watch(
        self, http: web.BaseRequest, target: Target, query: dict[str, str]
    ) -> web.StreamResponse:
        fields = read_fields(target.kind, query.get("fieldSelector", ""))
        if target.name:
            fields["metadata.name"] = target.name
        selector = read_selector(query.get("labelSelector", ""))
        watch = Watch(target.kind, target.namespace, selector, fields)
        since = int(query.get("resourceVersion") or 0) or None
        seconds = float(query.get("timeoutSeconds") or WATCH_SECONDS)
        marks = self.tempo.bookmark if is_true(query.get("allowWatchBookmarks", "")) else None
        return await _stream(http, self.watches.follow(watch, since, seconds, marks))

    async def _log(
        self, http: web.BaseRequest, target: Target, request: Request
    ) -> web.StreamResponse:
        lines = self.logs.read(target.namespace, target.name, request.query)
        request.status = 200
        if lines is None:
            return web.Response(status=204)
        if is_true(request.query.get("follow", "")):
            return await _stream(http, lines, "text/plain")
        body = b"".join([line async for line in lines])
        return web.Response(body=body, content_type="text/plain")


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=_LONGEST_BODY
    )


async def _stream(
    http: web.BaseRequest, lines: AsyncIterator[bytes], content_type: str = "application/json"
) -> web.StreamResponse:
    """Send the lines as they come; at the mark of a cut, half a line, then disconnect."""
    half = None if content_type == "application/json" else 0
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(http)
    try:
        async for line in lines:
            if line == CUT:
                await response.write(b'{"type":"MODIFIED","object":{"kind":"Pod","api'[:half])
                _drop(http)
                break
            await response.write(line)
        with suppress(ConnectionError):
            await response.write_eof()
    except ConnectionError:
        pass  # the client has closed the connection
    return response


def _fail(http: web.BaseRequest, fault: Fault, request: Request) -> None:
    if fault.drop:
        _drop(http)
        raise answers.ApiError(500, "this is never read: the connection is broken")
    if fault.status:
        raise fault.refusal(request)


def _drop(http: web.BaseRequest) -> None:
    if http.transport:
        http.transport.close()


def _read(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    if body.startswith(b"k8s\0"):
        raise answers.ApiError(415, "the double reads no protobuf; send JSON")
    try:
        return dict(json.loads(body))
    except ValueError as error:
        raise answers.ApiError(400, f"error parsing the body: {error}") from error


def _refuse(refusal: answers.ApiError) -> web.Response:
    content_type, body = refusal.body()
    headers = {"Content-Type": content_type, **refusal.headers}
    return web.Response(status=refusal.code, body=body, headers=headers)
