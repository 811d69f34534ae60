"""The double as a test uses it: its objects, actions of users and controllers, and faults."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aerotrain.supervisor.processes import send
from support.kubernetes_double import statuses
from support.kubernetes_double.cluster import Cluster
from support.kubernetes_double.faults import Fault, Request
from support.kubernetes_double.objects import Manifest
from support.kubernetes_double.statuses import Edit

T = TypeVar("T")

#: Timeout in seconds of a test's waits.
PATIENCE = 30.0


class KubernetesDouble(Cluster):
    """A cluster in a thread of this process; its methods may be called from any other thread."""

    # What there is

    def pod(self, name: str, namespace: str = "default") -> Manifest | None:
        return self.find("pods", name, namespace)

    def find(self, plural: str, name: str, namespace: str = "default") -> Manifest | None:
        """The object in its present state, or None."""
        kind = self._kind(plural)
        where = namespace if kind.namespaced else ""
        stored = self._call(lambda: self._objects.find(kind, where, name))
        return stored.manifest() if stored else None

    def all(self, plural: str, namespace: str = "") -> list[Manifest]:
        """All objects of a kind, in one namespace or in all."""
        kind = self._kind(plural)
        found = self._call(lambda: self._objects.select(kind, namespace))
        return [stored.manifest() for stored in found]

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

    def edit(self, plural: str, name: str, edit: Edit, namespace: str = "default") -> None:
        """Change an object by hand."""
        self._call(lambda: self._objects.change(self._stored(plural, name, namespace), edit))

    def delete(self, plural: str, name: str, namespace: str = "default", **options: Any) -> None:
        """Delete an object by hand; ``options`` as in DeleteOptions."""
        self._call(lambda: self._deletion.delete(self._stored(plural, name, namespace), options))

    def kill(self, name: str, signal: int = 9, namespace: str = "default") -> None:
        """Send a signal to the first process of each container of a pod that is a process."""
        send(self.pids(name, namespace).values(), signal)

    def pids(self, name: str, namespace: str = "default") -> dict[str, int]:
        return self._call(lambda: self._kubelet.pids(self._stored("pods", name, namespace)))

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

    def release(self, name: str, namespace: str = "default") -> None:
        self._call(lambda: self._kubelet.release(self._stored("pods", name, namespace)))

    def say(
        self,
        name: str,
        *lines: str,
        namespace: str = "default",
        container: str = "",
        end: str = "\n",
    ) -> None:
        """Add lines to the log of a pod."""

        def write() -> None:
            stored = self._stored("pods", name, namespace)
            first = stored.manifest()["spec"]["containers"][0]["name"]
            for line in lines:
                self._logs.of(stored.uid, container or first).write(f"{line}{end}".encode())

        self._call(write)

    def tell(
        self,
        name: str,
        reason: str,
        message: str,
        type_: str = "Warning",
        namespace: str = "default",
    ) -> None:
        """Write an event about a pod."""
        self._call(
            lambda: self._kubelet.tell(
                self._stored("pods", name, namespace), type_, reason, message
            )
        )

    # Faults

    def fail(self, status: int = 0, **order: Any) -> Fault:
        """Order a failure of the next requests that match; ``Fault`` describes the options."""
        fault = Fault(status=status, **order)
        self._call(lambda: self._server.faults.ordered.append(fault))
        return fault

    def deny(self, verb: str, resource: str) -> None:
        """Revoke a permission: ``deny("list", "pods")``, ``deny("*", "pods/log")``."""
        self._access.denied.add((verb, resource))

    def allow(self, verb: str, resource: str) -> None:
        """Grant a revoked permission again."""
        self._access.denied.discard((verb, resource))

    def obey(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Allow what the ``rules`` of a Role allow, and nothing else."""
        self._access.rules = rules

    def cut_watches(self) -> None:
        """Break the connection of every open watch in the middle of a line."""
        self._call(self._watches.cut)

    def expire_watches(self) -> None:
        """Send every open watch the error 410, and forget the versions before now."""
        self._call(self._objects.forget_history)
        self._call(self._watches.expire)

    def forget_history(self) -> None:
        """Respond with 410 to every watch from a version before now."""
        self._call(self._objects.forget_history)

    def cut_logs(self) -> None:
        """Break the connection of every log that is followed."""
        self._call(self._logs.cut)

    def hide_log(self, name: str, answer: str, namespace: str = "default") -> None:
        """Answer every request for the log of a pod with this text, and the status 200.

        A kubelet does so while it cannot read the file; with an empty text the lines are back.
        """

        def hide() -> None:
            stored = self._stored("pods", name, namespace)
            first = stored.manifest()["spec"]["containers"][0]["name"]
            log = self._logs.of(stored.uid, first)
            log.trouble = answer.encode()
            log.cut()

        self._call(hide)

    def rotate_log(
        self, name: str, keep: int = 0, namespace: str = "default", container: str = ""
    ) -> None:
        """Serve only the newest ``keep`` lines, and later ones, to new requests."""

        def rotate() -> None:
            stored = self._stored("pods", name, namespace)
            first = stored.manifest()["spec"]["containers"][0]["name"]
            self._logs.of(stored.uid, container or first).rotate(keep)

        self._call(rotate)

    def go_away(self) -> None:
        """Refuse every connection, as a machine does whose API server is down."""
        self._await(self._server.go_away())

    def come_back(self) -> None:
        self._await(self._server.listen())

    @contextmanager
    def away(self) -> Iterator[None]:
        self.go_away()
        try:
            yield
        finally:
            self.come_back()


def state_named(name: str, *arguments: Any) -> Edit:
    """The state that a program outside this process requests by name."""
    edit: Edit = getattr(statuses, name)(*arguments)
    return edit
