"""One pod whose containers are real processes, from Pending to its end."""

import asyncio
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from support.kubernetes_double import statuses
from support.kubernetes_double.containers import Container
from support.kubernetes_double.logs import Logs
from support.kubernetes_double.objects import Manifest, Objects, Stored
from support.kubernetes_double.statuses import Edit
from support.kubernetes_double.surroundings import Addresses, Surroundings

#: Seconds, those of a real Kubernetes 1.36 divided by about five: until the scheduler has found a
#: node; until the kubelet has made the containers; from a container's end to its status; from there
#: to the pod's phase; from the end of a deleted pod's containers to that of the object.
_SCHEDULE, _CREATE, _NOTICE, _PHASE, REMOVAL = 0.01, 0.03, 0.05, 0.2, 0.05


class ProcessPod:
    """Runs a pod; restartPolicy Never."""

    def __init__(
        self, stored: Stored, folder: Path, objects: Objects, logs: Logs, addresses: Addresses
    ) -> None:
        self._stored = stored
        self._objects = objects
        self._logs = logs
        self._pod = stored.manifest()
        self._around = Surroundings(self._pod, folder, objects, addresses)
        self._containers: dict[str, Container] = {}
        self._told_to_end: asyncio.Event = asyncio.Event()
        self._life = asyncio.get_running_loop().create_task(self._live())

    def end(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after ``grace`` seconds; a second call may shorten it."""
        self._told_to_end.set()
        for container in self._containers.values() if grace else ():
            container.signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(grace, self._kill)

    def _kill(self) -> None:
        for container in self._containers.values():
            if not container.ended.done():
                container.kill()

    async def stop(self) -> None:
        """End the pod together with the whole double."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        await asyncio.gather(*(self._gone(each) for each in self._containers.values()))

    async def _gone(self, container: Container) -> None:
        if not container.ended.done():
            await asyncio.to_thread(container.kill)
            await asyncio.wait_for(container.ended, 10)

    async def _live(self) -> None:
        try:
            if await self._begin():
                await self._work()
            await self._finish()
        finally:
            self._logs.close(self._stored.uid)

    async def _begin(self) -> bool:
        """Schedule the pod and set up its volumes and variables; False if it was deleted before."""
        await asyncio.sleep(_SCHEDULE)
        self._become(statuses.scheduled())
        self._become(statuses.waiting("ContainerCreating"))
        await asyncio.sleep(_CREATE)
        self._around.prepare()
        return not self._told_to_end.is_set()

    async def _work(self) -> None:
        for container in self._pod["spec"]["containers"]:
            self._containers[container["name"]] = Container(
                self._around.command(container),
                self._around.variables(container),
                self._around.directory(container),
                self._logs.of(self._stored.uid, container["name"]),
            )
        self._become(statuses.running())
        await asyncio.gather(*(self._watch(each) for each in self._pod["spec"]["containers"]))

    async def _watch(self, container: Manifest) -> None:
        """Follow one container from its start to its termination message in the pod's status."""
        code = await self._containers[container["name"]].ended
        await asyncio.sleep(_NOTICE)
        message = self._last_words(container)
        end = statuses.terminated(code, "", message, container["name"])
        # For a pod that was deleted, a real kubelet reports both at once.
        is_told = self._told_to_end.is_set()
        self._become(statuses.both(end, statuses.ended()) if is_told else end)

    async def _finish(self) -> None:
        """Set the phase, and remove the object if it was deleted."""
        await self._told_or(_PHASE)
        self._become(statuses.ended())
        await self._told_to_end.wait()
        await asyncio.sleep(REMOVAL)
        self._objects.remove(self._stored)
        shutil.rmtree(self._around.folder, ignore_errors=True)

    async def _told_or(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._told_to_end.wait(), seconds)

    def _become(self, edit: Edit) -> None:
        self._objects.change(self._stored, edit)

    def _last_words(self, container: Manifest) -> str:
        path = self._around.termination_log(container)
        if path.exists():
            return path.read_text(errors="replace")[:4096]
        return ""
