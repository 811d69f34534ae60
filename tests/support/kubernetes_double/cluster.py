"""The parts of the double put together, and the thread in which they run."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from support.kubernetes_double import admission
from support.kubernetes_double.access import USER, Access
from support.kubernetes_double.api import Api
from support.kubernetes_double.deletion import Deletion
from support.kubernetes_double.kinds import KINDS, NAMESPACES, PODS, Kind, kueue
from support.kubernetes_double.kubelet import Kubelet
from support.kubernetes_double.logs import Logs
from support.kubernetes_double.nodes import Tempo
from support.kubernetes_double.objects import Manifest, Objects, Stored
from support.kubernetes_double.server import Control, Server
from support.kubernetes_double.statuses import Edit
from support.kubernetes_double.watches import Watches

T = TypeVar("T")


class Cluster:
    """A cluster in a thread of this process; its methods may be called from any other thread.

    ``environment`` is what every container has besides its own variables. With ``everyone``, all
    pods are imagined and begin in this state; without it they are real processes. If ``token`` is
    set, requests must carry it.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        namespaces: Sequence[str] = ("default",),
        environment: Mapping[str, str] | None = None,
        everyone: Edit | None = None,
        token: str = "",
        tempo: Tempo | None = None,
        kueue_version: str = "",
        port: int = 0,
    ) -> None:
        self._own_folder = None if folder else tempfile.TemporaryDirectory(prefix="kubernetes-")
        self.folder = folder or Path(self._own_folder.name if self._own_folder else "")
        self._namespaces = namespaces
        self._environment = environment or {}
        self._tempo = tempo or Tempo()
        self._kinds = (*KINDS, *kueue(kueue_version))
        self._changed = threading.Condition()
        self._objects = Objects()
        self._logs = Logs(self._objects)
        self._access = Access(token)
        self._watches = Watches(self._objects)
        self._kubelet = Kubelet(
            self._objects,
            self._logs,
            self._tempo,
            self.folder / "pods",
            self._environment,
            everyone,
        )
        deletion = Deletion(self._objects, self._tempo, self._kinds)
        deletion.end_pod = self._kubelet.end
        self._deletion = deletion
        self._api = Api(self._objects, self._access, deletion)
        self._api.run_pod = self._kubelet.run
        self._objects.listeners.append(lambda _: self._notify())
        self._server = Server(
            self._api, self._access, self._watches, self._logs, self._kinds, self._tempo
        )
        self._server.port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kubernetes-double", daemon=True
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self._await(self._server.listen())
        for namespace in self._namespaces:
            self.create({"kind": "Namespace", "metadata": {"name": namespace}})
        self._write_kubeconfig()
        return self

    def stop(self) -> None:
        """End the processes of all pods, and the server."""
        self._await(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._own_folder:
            self._own_folder.cleanup()

    async def _end(self) -> None:
        await self._kubelet.stop()
        await self._server.go_away()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def serve_control(self, control: Control) -> None:
        """Respond to ``POST /double/METHOD`` with ``control``, for clients in another process."""
        self._server.control = control

    # How to reach it

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def kubeconfig(self) -> Path:
        """The file for KUBECONFIG, ``load_kube_config`` and kubectl."""
        return self.folder / "kubeconfig"

    @property
    def token(self) -> str:
        return self._access.token

    def rotate_token(self, token: str, *, tell: bool = True) -> None:
        """Accept only ``token`` from now on, and write it into the kubeconfig if requested."""
        self._access.token = token
        if tell:
            self._write_kubeconfig()

    def create(self, manifest: Manifest, namespace: str = "default") -> Manifest:
        """Create an object as an administrator would: no request, no permission needed."""
        kind = next(kind for kind in self._kinds if kind.kind == manifest["kind"])
        where = manifest["metadata"].get("namespace", namespace) if kind.namespaced else ""

        def put() -> Stored:
            stored = self._objects.put(
                kind, admission.prepare(kind, where, manifest, self._objects)
            )
            if kind is PODS:
                self._kubelet.run(stored)
            return stored

        return self._call(put).manifest()

    # Calls between threads

    def _call(self, function: Callable[[], T]) -> T:
        """Run ``function`` in the thread of the double."""
        if threading.current_thread() is self._thread:
            return function()

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _kind(self, plural: str) -> Kind:
        return next(kind for kind in self._kinds if kind.plural == plural)

    def _stored(self, plural: str, name: str, namespace: str) -> Stored:
        kind = self._kind(plural)
        stored = self._objects.find(kind, "" if kind is NAMESPACES else namespace, name)
        assert stored, f"there is no {plural} {namespace}/{name} in this double"
        return stored

    def _write_kubeconfig(self) -> None:
        user = {"token": self.token} if self.token else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "double",
            "clusters": [{"name": "double", "cluster": {"server": self.url}}],
            "users": [{"name": USER, "user": user}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": USER}}],
        }
        new = self.kubeconfig.with_suffix(".new")
        new.write_text(yaml.safe_dump(config))
        new.replace(self.kubeconfig)
