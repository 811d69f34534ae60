"""One pod whose containers are real processes, from Pending to its end."""

import asyncio
import errno
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from support.kubernetes_double import nodes, statuses
from support.kubernetes_double.containers import Container
from support.kubernetes_double.logs import Logs
from support.kubernetes_double.nodes import Tempo
from support.kubernetes_double.objects import Manifest, Objects, Stored
from support.kubernetes_double.statuses import Edit
from support.kubernetes_double.surroundings import Addresses, ConfigError, Surroundings

#: Writes an event of this pod: type, reason, message.
Tell = Callable[[str, str, str], None]

#: How much of its log replaces the termination message of a container that wrote none.
_LAST_LINES, _LAST_BYTES = 80, 2048

#: Messages of a container runtime where those of this system differ.
_WORDS = {errno.ENOENT: "executable file not found in $PATH"}


class ProcessPod:
    """Runs a pod; restartPolicy Never."""

    def __init__(
        self,
        stored: Stored,
        folder: Path,
        objects: Objects,
        logs: Logs,
        addresses: Addresses,
        tempo: Tempo,
        common: Mapping[str, str],
        tell: Tell,
    ) -> None:
        self._stored = stored
        self._objects = objects
        self._logs = logs
        self._tempo = tempo
        self._tell = tell
        self._pod = stored.manifest()
        self._around = Surroundings(self._pod, folder, objects, addresses, common)
        self._containers: dict[str, Container] = {}
        self._told_to_end: asyncio.Event = asyncio.Event()
        self._grace = 0.0
        self._expired = False
        self._life = asyncio.get_running_loop().create_task(self._live())

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each container that was started."""
        return {name: container.pid for name, container in self._containers.items()}

    def end(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after ``grace`` seconds; a second call may shorten it."""
        self._grace = grace
        self._told_to_end.set()
        if grace:
            self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(grace, self.kill)

    def kill(self) -> None:
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
        await asyncio.sleep(self._tempo.schedule)
        short = nodes.what_is_short(self._pod)
        if short:
            self._become(statuses.unschedulable(short))
            self._tell("Warning", "FailedScheduling", short)
            await self._told_to_end.wait()
            return False
        self._become(statuses.scheduled())
        name, namespace = self._stored.name, self._stored.namespace
        where = f"Successfully assigned {namespace}/{name} to {statuses.NODE}"
        self._tell("Normal", "Scheduled", where)
        self._become(statuses.waiting("ContainerCreating"))
        await asyncio.sleep(self._tempo.create / 2)
        self._become(statuses.ready_to_start())
        await asyncio.sleep(self._tempo.create / 2)
        if not await self._pull():
            return False
        while not self._told_to_end.is_set():
            try:
                self._around.prepare()
                for container in self._pod["spec"]["containers"]:
                    self._around.variables(container)
                return True
            except ConfigError as error:
                # A real kubelet attempts it again every few seconds.
                self._become(statuses.waiting("CreateContainerConfigError", str(error)))
                self._tell("Warning", "Failed", f"Error: {error}")
                await self._told_or(self._tempo.phase)
        return False

    async def _pull(self) -> bool:
        """Whether the images could be pulled; if not, the pod waits for them to its end."""
        trouble = nodes.what_cannot_be_pulled(self._pod)
        if not trouble:
            return True
        image, message = trouble
        self._become(statuses.waiting("ErrImagePull", message))
        self._tell("Warning", "Failed", f'Failed to pull image "{image}": {message}')
        await self._told_or(self._tempo.phase)
        back_off = f'Back-off pulling image "{image}": ErrImagePull: {message}'
        self._become(statuses.image_pull_back_off(back_off))
        await self._told_to_end.wait()
        return False

    async def _work(self) -> None:
        for container in self._pod["spec"].get("initContainers") or ():
            code = await self._run_first(container)
            if code:
                self._become(_init_failed(container["name"], code))
                return
        if self._told_to_end.is_set():
            return
        for container in self._pod["spec"]["containers"]:
            self._start(container)
        if self._containers:
            self._become(statuses.running())
        deadline = self._pod["spec"].get("activeDeadlineSeconds")
        timer = deadline and asyncio.get_running_loop().call_later(deadline, self._expire)
        await asyncio.gather(*(self._watch(each) for each in self._pod["spec"]["containers"]))
        if timer:
            timer.cancel()

    async def _run_first(self, container: Manifest) -> int:
        """Run an init container."""
        try:
            return await self._process(container).ended
        except OSError:
            return 128

    def _start(self, container: Manifest) -> None:
        name = container["name"]
        try:
            self._process(container)
        except OSError as error:
            command = container.get("command") or ["?"]
            message = (
                "failed to create containerd task: failed to create shim task: OCI runtime create "
                "failed: runc create failed: unable to start container process: exec: "
                f'"{command[0]}": {_WORDS.get(error.errno or 0, error.strerror)}'
            )
            self._become(statuses.terminated(128, "StartError", message, name))
            self._tell("Warning", "Failed", f"Error: {message}")
            return
        self._tell("Normal", "Started", "Container started")

    def _process(self, container: Manifest) -> Container:
        name = container["name"]
        process = Container(
            self._around.command(container),
            self._around.variables(container),
            self._around.directory(container),
            self._logs.of(self._stored.uid, name),
            self._around.folder / ("log" if len(self._containers) == 0 else f"{name}.log"),
        )
        self._containers[name] = process
        return process

    async def _watch(self, container: Manifest) -> None:
        """Follow one container from its start to its termination message in the pod's status."""
        process = self._containers.get(container["name"])
        if process is None:
            return  # it could not be started, which the status already shows
        code = await process.ended
        await asyncio.sleep(self._tempo.notice)
        message = self._last_words(container, code)
        end = statuses.terminated(code, "", message, container["name"])
        # For a pod that was deleted, a real kubelet reports both at once.
        self._become(statuses.both(end, _end_if_all) if self._told_to_end.is_set() else end)

    async def _finish(self) -> None:
        """Set the phase, and remove the object if it was deleted."""
        if self._expired:
            message = "Pod was active on the node longer than the specified deadline"
            self._become(statuses.failed("DeadlineExceeded", message))
        else:
            await self._told_or(self._tempo.phase)
            self._become(_end_if_all)
        await self._told_to_end.wait()
        await asyncio.sleep(self._tempo.removal)
        self._objects.remove(self._stored)
        shutil.rmtree(self._around.folder, ignore_errors=True)

    async def _told_or(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._told_to_end.wait(), seconds)

    def _expire(self) -> None:
        self._expired = True
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(
            self._pod["spec"]["terminationGracePeriodSeconds"], self.kill
        )

    def _signal(self, number: int) -> None:
        for container in self._containers.values():
            container.signal(number)

    def _become(self, edit: Edit) -> None:
        self._objects.change(self._stored, edit)

    def _last_words(self, container: Manifest, code: int) -> str:
        path = self._around.termination_log(container)
        if path.exists():
            return path.read_text(errors="replace")[:4096]
        if code and container["terminationMessagePolicy"] == "FallbackToLogsOnError":
            lines = self._logs.of(self._stored.uid, container["name"]).lines[-_LAST_LINES:]
            return b"".join(line for _, line in lines)[-_LAST_BYTES:].decode(errors="replace")
        return ""


def _end_if_all(pod: Manifest) -> None:
    """Set the phase once every container has ended."""
    states = [each["state"] for each in pod["status"].get("containerStatuses", ())]
    if states and all("terminated" in state for state in states):
        statuses.ended()(pod)


def _init_failed(name: str, code: int) -> Edit:
    def edit(pod: Manifest) -> None:
        ended = {"exitCode": code, "reason": "Error"}
        pod["status"] |= {
            "phase": "Failed",
            "initContainerStatuses": [
                {"name": name, "ready": False, "restartCount": 0, "state": {"terminated": ended}}
            ],
        }
        for each in pod["status"]["containerStatuses"]:
            each["state"] = {"waiting": {"reason": "PodInitializing"}}

    return edit
