"""How a graph requests windows of records and learns their place: by files.

Files, because the graph may come from a process on another machine. All are in the folder
``windows``. The number of the window that is read next is written to the pipe ``asked``. The file
of that number appears when all shards of the window are on the disk, and says where its records
are. ``failed`` appears when no more windows will come. Neither a request nor a failure takes disk
space, so both work on a full disk. ``shard_cache.py`` answers, ``shuffle_windows.py`` requests.
"""

import contextlib
import os
import select
import shutil
from pathlib import Path

#: The folder of requests, the pipe, and the file that marks a failure, which has another name until
#: then.
WINDOWS, ASKED, FAILED, _GOING = "windows", "asked", "failed", "going"

#: The digits of a window's number, in the name of its file and in a request.
DIGITS = 12


class WindowRequests:
    """The answering side, in the folder ``windows`` of ``scratch``."""

    def __init__(self, scratch: Path) -> None:
        self.folder = scratch / WINDOWS
        self._asked = -1
        self._poll = select.poll()

    def open(self) -> None:
        """Start to accept requests, and discard those of an earlier process.

        Raises:
            OSError: the disk is full.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        os.mkfifo(self.folder / ASKED)
        # Opened for writing, too, so that a writer need not wait for a reader.
        self._asked = os.open(self.folder / ASKED, os.O_RDWR | os.O_NONBLOCK)
        self._poll.register(self._asked, select.POLLIN)
        (self.folder / _GOING).touch()

    def close(self) -> None:
        """Accept no more requests."""
        # In this order; otherwise a request at this moment would wait for a reader forever.
        (self.folder / ASKED).unlink(missing_ok=True)
        os.close(self._asked)

    def wait(self, seconds: float) -> None:
        """Return at the next request, and after ``seconds`` at the latest."""
        self._poll.poll(1000 * seconds)

    def newest(self, otherwise: int) -> int:
        """The number of the last request, or ``otherwise``. Each number is written atomically."""
        number = otherwise
        with contextlib.suppress(BlockingIOError):
            while numbers := os.read(self._asked, 1024 * DIGITS):
                number = int(numbers[-DIGITS:])
        return number

    def answer(self, number: int, said: str) -> None:
        """Write where the records of that window are.

        Raises:
            OSError: the disk is full.
        """
        partial = self.folder / "partial"
        partial.write_text(said)
        partial.replace(self._file(number))

    def forget(self, number: int) -> None:
        """Remove the file of that window, after it was read."""
        self._file(number).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Remove the files of all windows."""
        for file in self.folder.glob("[0-9]*"):
            file.unlink()

    def refuse(self) -> None:
        """Announce that no more windows come."""
        (self.folder / _GOING).rename(self.folder / FAILED)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:0{DIGITS}d}"
