"""What the backend of local processes would start: a value."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.job import Job


@dataclass(frozen=True)
class ProcessPlan:
    """One command for every replica, and the folder of the group."""

    job: Job
    attempt: str
    folder: Path
    command: tuple[str, ...]

    @property
    def handle(self) -> str:
        """The folder of the job and the attempt."""
        return str(self.folder)

    @property
    def description(self) -> str:
        """The same for every launch of the same job; different if anything in it differs."""
        described = json.dumps([self.job.to_json(), self.command])
        return hashlib.sha256(described.encode()).hexdigest()

    def __str__(self) -> str:
        lines = [f"{self.folder}: attempt {self.attempt}"]
        lines += [f"  {name}: {' '.join(self.command)}" for name in self.job.names()]
        return "\n".join(lines)
