"""What of the replicas' output reaches the task's log, and how often."""

import re
import time
from dataclasses import replace
from itertools import chain

from aerotrain.contract.errors import ERROR_PREFIX
from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import Progress
from aerotrain.launch.backend import Emit, LogLine
from aerotrain.launch.decision import LastStep

#: What TensorFlow's C++ prints whatever its log level: a banner, and all that is of level INFO.
_NOISE = re.compile(
    r"^I\d{4} \d\d:|All log messages before absl::InitializeLog|oneDNN custom operations are on"
)

#: The server of a worker or ps prints its options like this, and an empty line at the end.
_DUMP = re.compile(r"^I\d{4} .* SessionOptions: ")
_OF_DUMP = re.compile(r"\s*(\w+ \{|\}|\w+: \S+)?\s*")


class Listener:
    """Forwards lines, and keeps the last progress line.

    The error that ends a replica is its last line, and part of the message of its restart or of the
    job's end. Such a line is held back until the replica says more, and left out if the message has
    it, so that the log has each error once.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._held: dict[ReplicaName, list[LogLine]] = {}
        self._reported = ""
        self._dumping: set[ReplicaName] = set()
        self.last_step: LastStep | None = None

    def emit(self, line: LogLine) -> None:
        found = Progress.parse(line.text)
        if found is not None:
            self.last_step = LastStep(found.step, time.time())
        if line.text.startswith(ERROR_PREFIX):
            self._held.setdefault(line.replica, []).append(line)
            return
        if line.replica in self._held:
            self.release()
        self._emit(replace(line, is_noise=self._is_noise(line)))

    def _is_noise(self, line: LogLine) -> bool:
        if _DUMP.search(line.text):
            self._dumping.add(line.replica)
        elif line.replica in self._dumping and _OF_DUMP.fullmatch(line.text):
            if not line.text.strip():
                self._dumping.remove(line.replica)
            return True
        return _NOISE.search(line.text) is not None

    def reported(self, message: str) -> None:
        """Take note of a message of the driver, which may have errors that are held back."""
        self._reported = message
        self.release()

    def release(self) -> None:
        """Forward the errors that are held back, except those that the last message has."""
        held, self._held = self._held, {}
        for line in chain.from_iterable(held.values()):
            if line.text.removeprefix(ERROR_PREFIX) not in self._reported:
                self._emit(line)
