"""What happens to pods: some are real processes, some are only imagined."""

import asyncio
import re
from pathlib import Path
from uuid import uuid4

from support.kubernetes_double import statuses
from support.kubernetes_double.logs import Logs
from support.kubernetes_double.objects import EVENTS, Objects, Stored, timestamp
from support.kubernetes_double.pods import REMOVAL, ProcessPod
from support.kubernetes_double.statuses import Edit
from support.kubernetes_double.surroundings import Addresses


class Kubelet:
    """The nodes of the cluster, all in one.

    A pod is a real process unless ``imagined`` has its name, or ``everyone`` is set: then these
    edits and later ones make its state.
    """

    def __init__(self, objects: Objects, logs: Logs, folder: Path, everyone: Edit | None) -> None:
        self._objects = objects
        self._logs = logs
        self._folder = folder
        self._addresses = Addresses()
        self._running: dict[str, ProcessPod] = {}
        self._everyone = everyone
        self.imagined: dict[tuple[str, str], Edit] = {}
        self.held: set[tuple[str, str]] = set()  # on an unresponsive node

    def run(self, stored: Stored) -> None:
        """A pod was created."""
        replica = re.sub(r"-r\d+$", "", stored.name)  # whatever its restart count is
        edit = self.imagined.get((stored.namespace, replica), self._everyone)
        if edit:
            asyncio.get_running_loop().call_soon(self.become, stored, edit)
            return
        folder = self._folder / stored.namespace / stored.uid
        self._running[stored.uid] = ProcessPod(
            stored, folder, self._objects, self._logs, self._addresses
        )

    def become(self, stored: Stored, edit: Edit) -> None:
        """Change the state of a pod."""
        now = self._objects.change(stored, edit)
        if now and b'"terminated"' in now.encoded:
            self._logs.close(now.uid)

    def end(self, stored: Stored, grace: float) -> None:
        """A pod was deleted."""
        process = self._running.get(stored.uid)
        if process:
            process.end(grace)
        elif grace and (stored.namespace, stored.name) not in self.held:
            asyncio.get_running_loop().call_later(REMOVAL, self._end_imagined, stored)

    def tell(self, stored: Stored, reason: str, message: str) -> None:
        """Write an event about the pod."""
        self._objects.put(
            EVENTS,
            {
                "metadata": {
                    "name": f"{stored.name}.{uuid4().hex[:16]}",
                    "namespace": stored.namespace,
                    "uid": str(uuid4()),
                    "creationTimestamp": timestamp(),
                },
                "involvedObject": {"kind": "Pod", "name": stored.name, "uid": stored.uid},
                "reason": reason,
                "message": message,
                "type": "Warning",
            },
        )

    async def stop(self) -> None:
        """End every process."""
        await asyncio.gather(*(process.stop() for process in self._running.values()))
        self._addresses.close()

    def _end_imagined(self, stored: Stored) -> None:
        now = self._objects.present(stored)
        if now:
            if now.manifest()["status"].get("phase") == "Running":
                self._objects.change(now, statuses.exited(143))
            self._objects.remove(now)
            self._logs.close(now.uid)
