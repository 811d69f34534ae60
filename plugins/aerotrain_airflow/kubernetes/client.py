"""Requests to the Kubernetes API, with the authentication and TLS of an Airflow connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.request import getproxies

import aiohttp
from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException

from aerotrain.contract.errors import FinalError


class Client:
    """A client that all clusters of a connection share in an event loop.

    Each reads the certificates of all authorities: some 40 ms, and 0.8 MiB.
    """

    def __init__(self, conn_id: str) -> None:
        self.users = 0
        self._turn = asyncio.Lock()
        self._conn_id = conn_id
        self._opening = asyncio.Lock()
        self._opened = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Read the credential, unless another user has done so."""
        async with self._opening:
            if self._session is not None:
                return
            configuration = Configuration()
            configuration.connection_pool_maxsize = 0  # groups limit their requests
            hook = AsyncKubernetesHook(conn_id=self._conn_id, client_configuration=configuration)
            try:
                self._api = await self._opened.enter_async_context(hook.get_conn())
            except ConfigException as error:
                raise FinalError(
                    f"no Kubernetes can be reached: {error}; create an Airflow connection "
                    "of type kubernetes (with in_cluster where Airflow runs in the cluster), "
                    "and name it in [aerotrain] kubernetes_conn_id"
                ) from error
            # The client's own session asks for ~/.netrc and proxies in a thread at each request.
            self._session = aiohttp.ClientSession(
                connector=self._api.rest_client.pool_manager.connector,
                trust_env=bool(getproxies()),
            )

    async def turn(self) -> None:
        """Wait for an iteration of the event loop in which no other caller continues.

        What follows, such as the decoding of an answer, takes milliseconds, and 100 groups that
        begin at once would block the loop for a second.
        """
        async with self._turn:
            await asyncio.sleep(0)

    def forget(self) -> None:
        """Let the next user of the connection read the credential again."""
        for key in [key for key, each in _clients.items() if each is self]:
            del _clients[key]

    async def close(self) -> None:
        await self._opened.aclose()

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        assert self._session is not None
        api, rest = self._api, self._api.rest_client
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {**api.default_headers, "Accept": "application/json", "Content-Type": kind}
        await api.update_params_for_auth(headers, [], ["BearerToken"])
        return await self._session.request(
            method,
            f"{api.configuration.host}{path}",
            params={name: value for name, value in query.items() if value},
            headers=headers,
            data=None if body is None else json.dumps(body),
            timeout=timeout,
            proxy=rest.proxy,
            proxy_headers=rest.proxy_headers,
            server_hostname=rest.server_hostname,
        )


#: Those in use, by event loop and connection.
_clients: dict[tuple[asyncio.AbstractEventLoop, str], Client] = {}


@asynccontextmanager
async def client_of(conn_id: str) -> AsyncIterator[Client]:
    """The client of the connection; the last user closes it."""
    client = _clients.setdefault((asyncio.get_running_loop(), conn_id), Client(conn_id))
    client.users += 1
    try:
        await client.open()
        yield client
    finally:
        client.users -= 1
        if not client.users:
            client.forget()
            await client.close()
