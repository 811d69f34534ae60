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
from support.kubernetes_double.kinds import CONFIGMAPS, SECRETS, Kind
from support.kubernetes_double.objects import Manifest, Objects

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_SOURCES_OF_VOLUMES = ((CONFIGMAPS, "configMap", "name"), (SECRETS, "secret", "secretName"))
_SOURCES = Path(__file__).parents[3] / "tasks"


class ConfigError(Exception):
    """The message of CreateContainerConfigError."""


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
        name = rf"([a-z0-9-]+)\.{re.escape(subdomain)}(?:\.[a-z0-9.-]+)?:(\d+)"
        return re.sub(name, lambda match: self._local(namespace, subdomain, match), text)

    def _local(self, namespace: str, subdomain: str, match: re.Match[str]) -> str:
        key = (namespace, f"{match[1]}.{subdomain}:{match[2]}")
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
    common: Mapping[str, str]
    volumes: dict[str, Path] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the folders of the volumes.

        Raises:
            ConfigError: an object from which a volume is made does not exist.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for volume in self.pod["spec"].get("volumes") or ():
            folder = self.folder / volume["name"]
            folder.mkdir(exist_ok=True)
            self.volumes[volume["name"]] = folder
            for kind, key, name in (
                (CONFIGMAPS, "configMap", "name"),
                (SECRETS, "secret", "secretName"),
            ):
                if key in volume:
                    for file, text in self._data(kind, volume[key][name]).items():
                        (folder / file).write_text(text)

    def command(self, container: Manifest) -> list[str]:
        """The argument vector; ``python`` is replaced by this interpreter."""
        given = [*(container.get("command") or ()), *(container.get("args") or ())]
        variables = self.variables(container)
        command = [_expand(self._local_paths(each, container), variables) for each in given]
        if command and command[0] in ("python", "python3"):
            command[0] = sys.executable
        return command

    def directory(self, container: Manifest) -> Path:
        """The working directory: the folder of a volume, or one of the container's own."""
        asked = container.get("workingDir", "")
        local = self._local_paths(asked, container)
        folder = Path(local) if asked and local != asked else self.folder / container["name"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def variables(self, container: Manifest) -> dict[str, str]:
        """The container's environment, with the variables that the image and the kubelet would add.

        Raises:
            ConfigError: a ConfigMap, a Secret or a key of one is missing.
        """
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        found = {
            "PATH": os.environ["PATH"],
            "HOSTNAME": spec.get("hostname") or metadata["name"],
            "PYTHONPATH": str(_SOURCES),
            "AEROTRAIN_TERMINATION_LOG": str(self.termination_log(container)),
            **self.common,
        }
        for source in container.get("envFrom") or ():
            kind, reference = self._source(source)
            optional = reference.get("optional", False)
            data = self._data(kind, reference["name"], optional=optional)
            found |= {source.get("prefix", "") + key: value for key, value in data.items()}
        for variable in container.get("env") or ():
            value = self._value(variable)
            if value is not None:
                value = _expand(self._local_paths(value, container), found)
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

    def _source(self, source: Mapping[str, Any]) -> tuple[Kind, Mapping[str, Any]]:
        if "secretRef" in source:
            return SECRETS, source["secretRef"]
        return CONFIGMAPS, source["configMapRef"]

    def _value(self, variable: Mapping[str, Any]) -> str | None:
        origin = variable.get("valueFrom")
        if not origin:
            return str(variable.get("value", ""))
        if "fieldRef" in origin:
            return _field(self.pod, origin["fieldRef"]["fieldPath"])
        for kind, key in ((CONFIGMAPS, "configMapKeyRef"), (SECRETS, "secretKeyRef")):
            if key in origin:
                return self._key(kind, origin[key])
        raise ConfigError(f"the double knows no such source of a variable: {origin}")

    def _key(self, kind: Kind, reference: Mapping[str, Any]) -> str | None:
        optional = reference.get("optional", False)
        data = self._data(kind, reference["name"], optional=optional)
        if reference["key"] not in data:
            if optional:
                return None
            where = f"{self.pod['metadata']['namespace']}/{reference['name']}"
            raise ConfigError(f"couldn't find key {reference['key']} in {kind.kind} {where}")
        return data[reference["key"]]

    def _data(self, kind: Kind, name: str, *, optional: bool = False) -> dict[str, str]:
        stored = self.objects.find(kind, self.pod["metadata"]["namespace"], name)
        if stored is None:
            if optional:
                return {}
            raise ConfigError(f'{kind.plural.removesuffix("s")} "{name}" not found')
        manifest = stored.manifest()
        data: dict[str, str] = dict(manifest.get("data") or {})
        if kind is SECRETS:
            data = {key: base64.b64decode(value).decode() for key, value in data.items()}
        return data


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` as the kubelet does."""
    return _REFERENCE.sub(lambda match: variables.get(match[1], match[0]), text)


def _field(pod: Manifest, path: str) -> str:
    found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if found:
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: Any = pod
    for key in path.split("."):
        value = value.get(key, "")
    return str(value)
