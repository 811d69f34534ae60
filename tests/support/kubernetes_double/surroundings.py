"""The environment of a container: its variables, its folders, and the other pods' addresses."""

import base64
import os
import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerotrain.supervisor.ports import reserved_ports
from support.kubernetes_double.objects import CONFIGMAPS, SECRETS, Kind, Manifest, Objects, field_of

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
