"""The double as a test uses it: its objects, actions of users and controllers, and faults."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from support.kubernetes_double.api import USER, Access, Api, prepare
from support.kubernetes_double.deletion import Deletion
from support.kubernetes_double.kubelet import Kubelet
from support.kubernetes_double.objects import (
    KINDS,
    PODS,
    Manifest,
    Objects,
    Selection,
    Stored,
    kueue,
)
from support.kubernetes_double.server import Control, Fault, Request, Server
from support.kubernetes_double.statuses import Edit
from support.kubernetes_double.streams import Log, Logs, Watches

T = TypeVar("T")

#: Timeout in seconds of a test's waits.
PATIENCE = 30.0


class KubernetesDouble:
    """A cluster in a thread of this process; its methods may be called from any other thread.

    With ``everyone``, all pods are imagined and begin in this state; without it they are real
    processes. If ``token`` is set, requests must carry it. ``kueue_version`` is that of the API of
    Kueue, if it is installed.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        everyone: Edit | None = None,
        token: str = "",
        kueue_version: str = "",
    ) -> None:
        self._own_folder = None if folder else tempfile.TemporaryDirectory(prefix="kubernetes-")
        self.folder = folder or Path(self._own_folder.name if self._own_folder else "")
        self._kinds = {kind.plural: kind for kind in (*KINDS, *kueue(kueue_version))}
        self._changed = threading.Condition()
        self._objects = Objects()
        self._logs = Logs(self._objects)
        self._access = Access(token)
        self._watches = Watches(self._objects)
        self._kubelet = Kubelet(self._objects, self._logs, self.folder / "pods", everyone)
        kinds = tuple(self._kinds.values())
        self._deletion = Deletion(self._objects, kinds, self._kubelet.end)
        api = Api(self._objects, self._access, self._deletion)
        api.run_pod = self._kubelet.run
        self._objects.listeners.append(lambda _: self._notify())
        self._server = Server(api, self._access, self._watches, self._logs, kinds)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kubernetes-double", daemon=True
        )

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self._await(self._server.listen())
        self.create({"kind": "Namespace", "metadata": {"name": "default"}})
        self._write_kubeconfig()
        return self

    def __exit__(self, *_: object) -> None:
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
        """The file for KUBECONFIG and ``load_kube_config``."""
        return self.folder / "kubeconfig"

    def rotate_token(self, token: str) -> None:
        """Accept only ``token`` from now on, and write it into the kubeconfig."""
        self._access.token = token
        self._write_kubeconfig()

    # What there is

    def find(self, plural: str, name: str, namespace: str = "default") -> Manifest | None:
        """The object in its present state, or None."""
        stored = self._call(lambda: self._objects.find(self._kinds[plural], namespace, name))
        return stored.manifest() if stored else None

    def all(self, plural: str, namespace: str = "") -> list[Manifest]:
        """All objects of a kind, in one namespace or in all."""
        selection = Selection(self._kinds[plural], namespace)
        return [stored.manifest() for stored in self._call(lambda: self._objects.select(selection))]

    def pods_of(self, job: str, namespace: str = "default") -> int:
        """The number of pods of a job that are not being deleted."""
        chosen = Selection(PODS, namespace, {"aerotrain/job": job})
        return self._call(lambda: sum(not each.deleting for each in self._objects.select(chosen)))

    @property
    def requests(self) -> list[Request]:
        """Every request so far, oldest first."""
        return list(self._server.requests)

    @property
    def watching(self) -> int:
        """The number of open watches."""
        return self._call(lambda: len(self._watches))

    def wait_for(self, condition: Callable[[], T], what: str = "", seconds: float = PATIENCE) -> T:
        """Wait until ``condition`` returns something true; it is called again after every change.

        Raises:
            AssertionError: it did not within ``seconds``.
        """
        end = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            left = end - time.monotonic()
            assert left > 0, f"waited {seconds:g} s in vain for {what or condition}"
            with self._changed:
                self._changed.wait(min(left, 0.2))

    # What users and other parts of a cluster do

    def create(self, manifest: Manifest, namespace: str = "default") -> Manifest:
        """Create an object as an administrator would: no request, no permission needed."""
        kind = next(kind for kind in self._kinds.values() if kind.kind == manifest["kind"])

        def put() -> Stored:
            where = namespace if kind.namespaced else ""
            made = prepare(kind, where, manifest, self._objects)
            stored = self._objects.put(kind, made)
            if kind is PODS:
                self._kubelet.run(stored)
            return stored

        return self._call(put).manifest()

    def edit(self, plural: str, name: str, edit: Edit, namespace: str = "default") -> None:
        """Change an object by hand."""
        self._call(lambda: self._objects.change(self._stored(plural, name, namespace), edit))

    def delete(self, plural: str, name: str, namespace: str = "default", **options: Any) -> None:
        """Delete an object by hand; ``options`` as in DeleteOptions."""
        self._call(lambda: self._deletion.delete(self._stored(plural, name, namespace), options))

    # Imagined pods

    def imagine(self, name: str, state: Edit, namespace: str = "default") -> None:
        """Let the pod of this name have no process and begin in this state once it is created."""
        self._call(lambda: self._kubelet.imagined.__setitem__((namespace, name), state))

    def become(self, name: str, state: Edit, namespace: str = "default") -> float:
        """Change the state of a pod; returns the time by the monotonic clock."""

        def change() -> float:
            self._kubelet.become(self._stored("pods", name, namespace), state)
            return time.monotonic()

        return self._call(change)

    def hold(self, name: str, namespace: str = "default") -> None:
        """Keep deletions of this imagined pod from finishing, as on an unresponsive node."""
        self._call(lambda: self._kubelet.held.add((namespace, name)))

    def say(self, name: str, *lines: str, namespace: str = "default") -> None:
        """Add lines to the log of a pod."""

        def write(log: Log) -> None:
            for line in lines:
                log.write(f"{line}\n".encode())

        self._with_log(name, namespace, write)

    def tell(self, name: str, reason: str, message: str, namespace: str = "default") -> None:
        """Write a warning about a pod."""
        self._call(
            lambda: self._kubelet.tell(self._stored("pods", name, namespace), reason, message)
        )

    # Faults

    def fail(self, status: int, **order: Any) -> Fault:
        """Order a failure of the next requests that match; ``Fault`` describes the options."""
        fault = Fault(status, **order)
        self._call(lambda: self._server.faults.append(fault))
        return fault

    def deny(self, verb: str, resource: str) -> None:
        """Revoke a permission, as ``deny("get", "pods/log")``."""
        self._access.denied.add((verb, resource))

    def allow(self, verb: str, resource: str) -> None:
        """Grant a revoked permission again."""
        self._access.denied.discard((verb, resource))

    def cut_watches(self) -> None:
        """Break the connection of every open watch in the middle of a line."""
        self._call(self._watches.cut)

    def expire_watches(self) -> None:
        """Send every open watch the error 410, and forget the versions before now."""
        self._call(self._objects.forget_history)
        self._call(self._watches.expire)

    def cut_logs(self) -> None:
        """Break the connection of every log that is followed."""
        self._call(self._logs.cut)

    def hide_log(self, name: str, answer: str, namespace: str = "default") -> None:
        """Answer every request for the log of a pod with this text, and the status 200.

        A kubelet does so while it cannot read the file; with an empty text the lines are back.
        """

        def hide(log: Log) -> None:
            log.trouble = answer.encode()
            log.cut()

        self._with_log(name, namespace, hide)

    def rotate_log(self, name: str, namespace: str = "default") -> None:
        """Serve only later lines to new requests."""
        self._with_log(name, namespace, Log.rotate)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse every connection, as a machine does whose API server is down."""
        self._await(self._server.go_away())
        try:
            yield
        finally:
            self._await(self._server.listen())

    # Calls between threads

    def _call(self, function: Callable[[], T]) -> T:
        """Run ``function`` in the thread of the double."""
        if threading.current_thread() is self._thread:  # ``Control`` is called there
            return function()

        async def run() -> T:
            return function()

        return self._await(run())

    def _await(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _stored(self, plural: str, name: str, namespace: str) -> Stored:
        kind = self._kinds[plural]
        stored = self._objects.find(kind, namespace if kind.namespaced else "", name)
        assert stored, f"there is no {plural} {namespace}/{name} in this double"
        return stored

    def _with_log(self, name: str, namespace: str, change: Callable[[Log], None]) -> None:
        """Change the log of a pod's first container."""

        def run() -> None:
            stored = self._stored("pods", name, namespace)
            container = stored.manifest()["spec"]["containers"][0]["name"]
            change(self._logs.of(stored.uid, container))

        self._call(run)

    def _write_kubeconfig(self) -> None:
        user = {"token": self._access.token} if self._access.token else {}
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
