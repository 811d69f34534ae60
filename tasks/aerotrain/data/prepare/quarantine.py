"""The quarantine: rejected records, each with its file, its offset and the reason."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from aerotrain.contract.errors import FinalError, counted
from aerotrain.data.sources import Rejected

#: How many rejected records an error names.
SHOWN = 10


class Quarantine(AbstractContextManager["Quarantine"]):
    """Writes rejected records to a file of JSON lines, which is removed if there are none.

    The file is uploaded to ``url`` later.
    """

    def __init__(self, path: Path, most: int, url: str) -> None:
        self.path = path
        self.url = url
        self.count = 0
        self.first: list[Rejected] = []
        self._most = most
        self._file = path.open("w")

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        if not self.count:
            self.path.unlink()

    def add(self, rejected: Sequence[Rejected]) -> None:
        """Write rejected records to the file.

        Raises:
            FinalError: there are too many by now; the message names the first.
        """
        for each in rejected:
            self._file.write(json.dumps(asdict(each), ensure_ascii=False) + "\n")
        self.count += len(rejected)
        self.first += rejected[: SHOWN - len(self.first)]
        if self.count > self._most and len(self.first) == SHOWN:
            self.check()

    def check(self) -> None:
        """Raise ``FinalError`` if more than the limit were rejected."""
        check_rejected(self.count, self.first, self._most, self.url)


def check_rejected(count: int, first: Sequence[Rejected], most: int, url: str) -> None:
    """Check that no more than ``most`` records were rejected.

    Raises:
        FinalError: more were; the message names the first, and ``url``, which lists all.
    """
    if count <= most:
        return
    alike: dict[tuple[str, str], list[str]] = {}
    for each in first[:SHOWN]:
        alike.setdefault((each.file, each.reason), []).append(each.place)
    listed = "\n".join(
        f"  {file} at {', '.join(places)}: {reason}" for (file, reason), places in alike.items()
    )
    raise FinalError(
        f"at least {counted(count, 'record')} {'was' if count == 1 else 'were'} rejected, and "
        f"max_rejected is {most}:\n{listed}\ncorrect them, or raise max_rejected; {url} lists them"
    )
