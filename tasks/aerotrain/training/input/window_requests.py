"""How a graph asks for windows of records, and is told where they are: by files.

For it may be the graph of another machine's process that was sent here. In the folder
``windows``, the number of the window that is read next is written to the pipe ``asked``; the
file of that number, which comes when all of its shards are there, says where its records are;
and ``failed`` comes when no more windows will. Neither asking nor refusing takes room on the
disk, so both do where it is full. ``cache.py`` answers, and ``windows.py`` asks.
"""

import contextlib
import os
import select
import shutil
from pathlib import Path

#: The folder by which windows are asked for, the pipe for it, and the sign that no more come,
#: which has another name until then.
WINDOWS, ASKED, FAILED, _GOING = "windows", "asked", "failed", "going"

#: The name of the file of a window is its number in as many digits, and so it is asked for.
DIGITS = 12


class WindowRequests:
    """The side that answers, in the folder ``windows`` of ``scratch``."""

    def __init__(self, scratch: Path) -> None:
        self.folder = scratch / WINDOWS
        self._asked = -1
        self._poll = select.poll()

    def open(self) -> None:
        """Take requests; those of an earlier process are forgotten.

        Raises:
            OSError: the disk takes no folder.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        os.mkfifo(self.folder / ASKED)
        # Held for writing, too, so that who asks need not wait for a reader.
        self._asked = os.open(self.folder / ASKED, os.O_RDWR | os.O_NONBLOCK)
        self._poll.register(self._asked, select.POLLIN)
        (self.folder / _GOING).touch()

    def close(self) -> None:
        """Take no more of them."""
        # In this order, or who asks just then would wait for a reader for ever.
        (self.folder / ASKED).unlink(missing_ok=True)
        os.close(self._asked)

    def wait(self, seconds: float) -> None:
        """Return when something is asked for, and after ``seconds`` at the latest."""
        self._poll.poll(1000 * seconds)

    def newest(self, otherwise: int) -> int:
        """The number that was asked for last, each being written at once and thus whole."""
        number = otherwise
        with contextlib.suppress(BlockingIOError):
            while numbers := os.read(self._asked, 1024 * DIGITS):
                number = int(numbers[-DIGITS:])
        return number

    def answer(self, number: int, said: str) -> None:
        """Say where the records of that window are.

        Raises:
            OSError: the disk takes no file.
        """
        partial = self.folder / "partial"
        partial.write_text(said)
        partial.replace(self._file(number))

    def forget(self, number: int) -> None:
        """Take back what was said of that window, once it was read."""
        self._file(number).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Take back what was said of any window."""
        for file in self.folder.glob("[0-9]*"):
            file.unlink()

    def refuse(self) -> None:
        """Say that no more windows come."""
        (self.folder / _GOING).rename(self.folder / FAILED)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:0{DIGITS}d}"
