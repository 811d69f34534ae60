"""Records that were not taken: each written down with its file, its offset and the reason."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from aerotrain.contract.errors import FinalError
from aerotrain.sources import Rejected

#: How many of them are named in an error.
SHOWN = 10


class Quarantine(AbstractContextManager["Quarantine"]):
    """Takes rejected records into a file, a JSON object a line; without any there is no file."""

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self.count = 0
        self.first: list[Rejected] = []
        self._most = most
        self._file = path.open("w")

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        if not self.count:
            self.path.unlink()

    def add(self, rejected: Sequence[Rejected]) -> None:
        """Write them down.

        Raises:
            FinalError: they are too many by now; the first are named.
        """
        for each in rejected:
            self._file.write(json.dumps(asdict(each), ensure_ascii=False) + "\n")
        self.count += sum(each.records for each in rejected)
        self.first += rejected[: SHOWN - len(self.first)]
        if self.count > self._most and len(self.first) == SHOWN:
            self.check()

    def check(self) -> None:
        """Raise ``FinalError`` if there are more than may be."""
        check_rejected(self.count, self.first, self._most)


def check_rejected(count: int, first: Sequence[Rejected], most: int) -> None:
    """Refuse what has more rejected records than may be.

    Raises:
        FinalError: it has; the message names the first.
    """
    if count <= most:
        return
    listed = "\n".join(
        f"  {each.file} at {each.unit} {each.offset}: {each.reason}" for each in first[:SHOWN]
    )
    raise FinalError(
        f"{count} records or more cannot be taken, where max_rejected is {most}:\n{listed}\n"
        "mend them, or raise max_rejected; the data set's folder quarantine/ lists them"
    )
