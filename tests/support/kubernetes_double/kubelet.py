"""What happens to pods: some are real processes, some are only imagined."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from support.kubernetes_double import statuses
from support.kubernetes_double.admission import timestamp
from support.kubernetes_double.kinds import EVENTS
from support.kubernetes_double.logs import Logs
from support.kubernetes_double.nodes import Tempo
from support.kubernetes_double.objects import Manifest, Objects, Stored
from support.kubernetes_double.pods import ProcessPod
from support.kubernetes_double.statuses import Edit
from support.kubernetes_double.surroundings import Addresses


class Kubelet:
    """The nodes of the cluster, all in one.

    A pod is a real process unless ``imagined`` has its name, or ``everyone`` is set: then these
    edits and later ones make its state.
    """

    def __init__(
        self,
        objects: Objects,
        logs: Logs,
        tempo: Tempo,
        folder: Path,
        environment: Mapping[str, str],
        everyone: Edit | None,
    ) -> None:
        self._objects = objects
        self._logs = logs
        self._tempo = tempo
        self._folder = folder
        self._environment = environment
        self._addresses = Addresses()
        self._running: dict[str, ProcessPod] = {}
        self.everyone = everyone
        self.imagined: dict[tuple[str, str], Edit] = {}
        self.held: set[tuple[str, str]] = set()  # on an unresponsive node

    def run(self, stored: Stored) -> None:
        """A pod was created."""
        replica = re.sub(r"-r\d+$", "", stored.name)  # whatever its restart count is
        edit = self.imagined.get((stored.namespace, replica), self.everyone)
        if edit:
            asyncio.get_running_loop().call_soon(self.become, stored, edit)
            return
        spec = stored.manifest()["spec"]
        # Pods of one job share a folder, whatever their names are.
        folder = self._folder / stored.namespace / spec.get("subdomain", stored.name) / stored.uid
        self._running[stored.uid] = ProcessPod(
            stored,
            folder,
            self._objects,
            self._logs,
            self._addresses,
            self._tempo,
            self._environment,
            lambda type_, reason, message: self.tell(stored, type_, reason, message),
        )

    def become(self, stored: Stored, edit: Edit) -> Stored | None:
        """Change the state of a pod."""
        now = self._objects.change(stored, edit)
        if now and b'"terminated"' in now.encoded:
            self._logs.close(now.uid)
        return now

    def end(self, stored: Stored, grace: float) -> None:
        """A pod was deleted."""
        process = self._running.get(stored.uid)
        if process:
            process.end(grace)
        elif grace and (stored.namespace, stored.name) not in self.held:
            asyncio.get_running_loop().call_later(self._tempo.removal, self._end_imagined, stored)

    def release(self, stored: Stored) -> None:
        """Let the node of a held pod respond again."""
        self.held.discard((stored.namespace, stored.name))
        now = self._objects.present(stored)
        if now and now.deleting:
            self._end_imagined(now)

    def pids(self, stored: Stored) -> dict[str, int]:
        return self._running[stored.uid].pids

    def tell(self, stored: Stored, type_: str, reason: str, message: str) -> None:
        """Write an event about the pod."""
        now = timestamp()
        involved = {"kind": "Pod", "namespace": stored.namespace, "name": stored.name}
        event: Manifest = {
            "metadata": {
                "name": f"{stored.name}.{uuid4().hex[:16]}",
                "namespace": stored.namespace,
                "uid": str(uuid4()),
                "creationTimestamp": now,
            },
            "involvedObject": {**involved, "uid": stored.uid, "apiVersion": "v1"},
            "reason": reason,
            "message": message,
            "type": type_,
        }
        if reason in ("Scheduled", "FailedScheduling"):
            event |= _BY_SCHEDULER | {"eventTime": now.replace("Z", ".123456Z")}
        else:
            event |= _BY_KUBELET | {"firstTimestamp": now, "lastTimestamp": now}
        self._objects.put(EVENTS, event)

    async def stop(self) -> None:
        """End every process."""
        await asyncio.gather(*(process.stop() for process in self._running.values()))
        self._addresses.close()

    def _end_imagined(self, stored: Stored) -> None:
        now = self._objects.present(stored)
        if now:
            self._objects.change(now, _killed)
            self._objects.remove(now)
            self._logs.close(now.uid)


#: Two generations of events: those of the scheduler have neither a count nor first and last times.
_BY_SCHEDULER: Manifest = {
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "reportingComponent": "default-scheduler",
    "reportingInstance": "default-scheduler-double",
}
_BY_KUBELET: Manifest = {
    "source": {"component": "kubelet", "host": statuses.NODE},
    "count": 1,
    "eventTime": None,
    "reportingComponent": "kubelet",
    "reportingInstance": statuses.NODE,
}


def _killed(pod: Manifest) -> None:
    if pod["status"].get("phase") == "Running":
        statuses.exited(143)(pod)
