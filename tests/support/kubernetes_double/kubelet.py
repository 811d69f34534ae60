"""What happens to pods: some are local processes, some are only imagined."""

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from aerotrain.contract.environment import Variable, read_cluster
from aerotrain.supervisor.ports import reserved_ports
from support.kubernetes_double import statuses
from support.kubernetes_double.objects import (
    CONFIGMAPS,
    EVENTS,
    SECRETS,
    Kind,
    Manifest,
    Objects,
    Stored,
    field_of,
    timestamp,
)
from support.kubernetes_double.statuses import Edit
from support.kubernetes_double.streams import Log, Logs

_SOURCES = Path(__file__).parents[3] / "tasks"


class Addresses:
    """Replaces the cluster's DNS: ``worker-0.NAME:2222`` is a port of this machine's loopback."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, str], int] = {}
        self._held = ExitStack()

    def close(self) -> None:
        self._held.close()

    def rewrite(self, text: str, namespace: str, subdomain: str) -> str:
        """``text`` with every ``host.SUBDOMAIN:port`` of this namespace made a local address."""
        if not subdomain:
            return text
        name = rf"[a-z0-9-]+\.{re.escape(subdomain)}:\d+"
        return re.sub(name, lambda match: self._local((namespace, match[0])), text)

    def _local(self, key: tuple[str, str]) -> str:
        if key not in self._ports:
            [port] = self._held.enter_context(reserved_ports(1))
            self._ports[key] = port.number
        return f"127.0.0.1:{self._ports[key]}"


@dataclass
class Surroundings:
    """The variables, folders and addresses of one pod; ``folder`` is the pod's own."""

    pod: Manifest
    folder: Path
    objects: Objects
    addresses: Addresses
    volumes: dict[str, Path] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the folders of the volumes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for volume in self.pod["spec"].get("volumes") or ():
            self.volumes[volume["name"]] = self.folder / volume["name"]
            self.volumes[volume["name"]].mkdir(exist_ok=True)

    def command(self, container: Manifest) -> list[str]:
        """The argument vector; ``python`` is replaced by this interpreter."""
        given = [*(container.get("command") or ()), *(container.get("args") or ())]
        command = [self._local_paths(each, container) for each in given]
        return [sys.executable, *command[1:]] if command[0] == "python" else command

    def directory(self, container: Manifest) -> Path:
        """The working directory: the folder of a volume, or one of the container's own."""
        asked = container.get("workingDir", "")
        local = self._local_paths(asked, container)
        folder = Path(local) if asked and local != asked else self.folder / container["name"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def variables(self, container: Manifest) -> dict[str, str]:
        """The container's environment, with the variables that image and kubelet would add."""
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        found = {
            "PATH": os.environ["PATH"],
            "HOSTNAME": spec.get("hostname") or metadata["name"],
            "PYTHONPATH": str(_SOURCES),
            "AEROTRAIN_TERMINATION_LOG": str(self.termination_log(container)),
        }
        for source in container.get("envFrom") or ():
            found |= self._data(SECRETS, source["secretRef"]["name"])
        for variable in container.get("env") or ():
            value = self._local_paths(self._value(variable), container)
            namespace = metadata["namespace"]
            if value and variable["name"] == Variable.CLUSTER:
                value = json.dumps(read_cluster(value))
            value = self.addresses.rewrite(value, namespace, spec.get("subdomain", ""))
            found[variable["name"]] = value
        return found

    def termination_log(self, container: Manifest) -> Path:
        """The file that the container has at ``/dev/termination-log``."""
        return self.folder / f"{container['name']}.termination-log"

    def _local_paths(self, text: str, container: Manifest) -> str:
        """Map ``/scratch/tmp`` into the folder of the volume that is mounted at ``/scratch``."""
        for mount in container.get("volumeMounts") or ():
            path = mount["mountPath"].rstrip("/")
            if text == path or text.startswith(f"{path}/"):
                return str(self.volumes[mount["name"]]) + text[len(path) :]
        return text

    def _value(self, variable: Mapping[str, Any]) -> str:
        origin = variable.get("valueFrom")
        if not origin:
            return str(variable.get("value", ""))
        if "fieldRef" in origin:
            return field_of(self.pod, origin["fieldRef"]["fieldPath"])
        reference = origin["configMapKeyRef"]
        return self._data(CONFIGMAPS, reference["name"]).get(reference["key"], "")

    def _data(self, kind: Kind, name: str) -> dict[str, str]:
        stored = self.objects.find(kind, self.pod["metadata"]["namespace"], name)
        data: dict[str, str] = dict(stored.manifest().get("data") or {}) if stored else {}
        if kind is SECRETS:
            data = {key: base64.b64decode(value).decode() for key, value in data.items()}
        return data


#: Timeout in seconds for the rest of a process's output after its end.
_LAST_WORDS = 2.0


class Container:
    """One running container.

    As in a container, nothing outlives the first process. Unlike there, the first process does not
    have process id 1, so that SIGTERM ends it even if it has no handler.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Log
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def signal(self, number: int) -> None:
        """Send a signal to the first process alone, as the kubelet does."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill all processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._tell(self._log.write, line)

    def _wait(self) -> None:
        code = self._process.wait()
        self.kill()  # the kernel kills what is left in a container
        self._reader.join(_LAST_WORDS)
        self._tell(self._end, 128 - code if code < 0 else code)

    def _end(self, code: int) -> None:
        self._log.close()
        if not self.ended.done():
            self.ended.set_result(code)

    def _tell(self, call: object, *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the double was stopped meanwhile
            self._loop.call_soon_threadsafe(call, *arguments)  # type: ignore[arg-type]


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
