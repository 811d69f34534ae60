"""Logs as containerd writes them and the kubelet serves them."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from support.kubernetes_double import answers
from support.kubernetes_double.kinds import PODS, is_true
from support.kubernetes_double.objects import Manifest, Objects
from support.kubernetes_double.watches import CUT


@dataclass
class Log:
    """The output of one container, each line with the nanosecond at which it arrived."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    first: int = 0  # older lines are in a file that has been rotated away
    closed: bool = False
    cuts: int = 0
    trouble: bytes = b""  # what the kubelet answers while it cannot read the file
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, line: bytes, at: int | None = None) -> None:
        """Add a line; it has no line end if the container left it unfinished."""
        self.lines.append((at or time.time_ns(), line))
        self._tell()

    def close(self) -> None:
        self.closed = True
        self._tell()

    def rotate(self, keep: int) -> None:
        """Begin a new file: a new request gets its ``keep`` lines and no older ones."""
        self.first = max(self.first, len(self.lines) - keep)

    def cut(self) -> None:
        self.cuts += 1
        self._tell()

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class Logs:
    """The logs of all containers, found by the pod's uid and the container's name."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._logs: defaultdict[str, dict[str, Log]] = defaultdict(dict)
        self._ended: set[str] = set()

    def of(self, uid: str, container: str) -> Log:
        return self._logs[uid].setdefault(container, Log(closed=uid in self._ended))

    def close(self, uid: str) -> None:
        """Close the logs of all containers of this pod: no more lines will come."""
        self._ended.add(uid)
        for log in self._logs[uid].values():
            log.close()

    def cut(self) -> None:
        """Break every log that is being followed."""
        for logs in self._logs.values():
            for log in logs.values():
                log.cut()

    def read(
        self, namespace: str, pod: str, query: Mapping[str, str]
    ) -> AsyncIterator[bytes] | None:
        """The response to ``GET pods/NAME/log``, None for a response without content.

        Raises:
            ApiError: there is no such pod or container, or it has no log yet.
        """
        stored = self._objects.find(PODS, namespace, pod)
        if stored is None:
            raise answers.not_found("pods", pod)
        container = _container(stored.manifest(), query.get("container", ""))
        if container is None:
            return None
        log = self.of(stored.uid, container)
        return _lines(log, query)


def _container(pod: Manifest, asked: str) -> str | None:
    """The requested container; None while the pod has no node."""
    name = pod["metadata"]["name"]
    containers = [each["name"] for each in pod["spec"]["containers"]]
    every = containers + [each["name"] for each in pod["spec"].get("initContainers") or ()]
    if not asked and len(every) > 1:
        raise answers.ApiError(
            400,
            f"a container name must be specified for pod {name}, choose one of: "
            f"[{' '.join(containers)}]",
        )
    container = asked or containers[0]
    if container not in every:
        raise answers.ApiError(400, f"container {container} is not valid for pod {name}")
    if "nodeName" not in pod["spec"]:
        return None
    status = pod["status"]
    for each in [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]:
        if each["name"] == container and "waiting" in each["state"]:
            reason = each["state"]["waiting"]["reason"]
            state = f"is waiting to start: {reason}"
            if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
                state = "is waiting to start: trying and failing to pull image"
            raise answers.ApiError(400, f'container "{container}" in pod "{name}" {state}')
    return container


async def _lines(log: Log, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    stamped = is_true(query.get("timestamps", ""))
    follow = is_true(query.get("follow", ""))
    since = _since(query)
    at = log.first
    if "tailLines" in query:
        at = max(at, len(log.lines) - int(query["tailLines"]))
    cuts = log.cuts
    if log.trouble:
        yield log.trouble
        return
    while True:
        news = log.news
        batch = log.lines[at:]
        at += len(batch)
        new = b"".join(
            _stamp(when) + line if stamped else line for when, line in batch if when >= since
        )
        if new:
            yield new
        if log.cuts > cuts:
            yield CUT
        if not follow or (log.closed and at == len(log.lines)):
            return
        if news is log.news:
            await news.wait()


def _since(query: Mapping[str, str]) -> int:
    """Nanoseconds; an API server passes ``sinceTime`` on to the kubelet in whole seconds."""
    if "sinceSeconds" in query:
        return time.time_ns() - int(query["sinceSeconds"]) * 10**9
    if "sinceTime" not in query:
        return 0
    try:
        moment = datetime.fromisoformat(query["sinceTime"])
    except ValueError as error:
        text = query["sinceTime"]
        raise answers.ApiError(
            400,
            f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}" as '
            '"2006"',
        ) from error
    return int(moment.timestamp()) * 10**9


def _stamp(nanoseconds: int) -> bytes:
    """RFC 3339 with nine digits: the kubelet's RFC3339NanoFixed."""
    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z ".encode()
