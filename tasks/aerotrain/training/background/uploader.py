"""The uploader: one thread that writes to the store while training continues.

A new upload replaces one that waits under the same name, so only the newest of each name is held.
While the store is unavailable, uploads are repeated.
"""

import threading
import time
from collections.abc import Callable

from aerotrain.contract.errors import TemporaryError, backoff
from aerotrain.store import StoreRefused

#: Seconds between two attempts; they double after each failure.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0

Upload = Callable[[], None]


class Uploader:
    """Runs uploads one after another, and repeats those that failed temporarily.

    ``deadline`` is the number of seconds for which they may fail in a row.
    """

    def __init__(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline = deadline
        self._clock = clock
        self._change = threading.Condition()
        self._waiting: dict[str, Upload] = {}
        self._running: str | None = None
        self._final: BaseException | None = None
        #: Uploads whose last attempt failed, with the error and the time of the first failure.
        self._failing: dict[str, tuple[Exception, float]] = {}
        self._thread = threading.Thread(target=self._work, name="uploader", daemon=True)
        self._thread.start()

    def send(self, name: str, upload: Upload) -> None:
        """Run ``upload`` soon, instead of what waits under ``name``."""
        with self._change:
            self._waiting[name] = upload
            self._change.notify_all()

    def check(self) -> None:
        """Raise an error that no further attempt can fix.

        Raises:
            FinalError: an upload failed for good.
            TemporaryError: the store has been unavailable for longer than the deadline.
        """
        with self._change:
            if self._final is not None:
                raise self._final
            if (error := self._late()) is not None:
                raise TemporaryError(
                    f"the store has failed for more than {self._deadline:g} s: {error}"
                ) from error

    def wait(self, seconds: float) -> bool:
        """Wait until all uploads are done, or cannot be done; return whether they are done."""
        until = self._clock() + seconds
        with self._change:
            while self._waiting or self._running:
                left = until - self._clock()
                if left <= 0 or self._late() or self._final is not None:
                    return False
                self._change.wait(min(left, 1.0))
            return self._final is None

    def _late(self) -> Exception | None:
        now = self._clock()
        late = (error for error, since in self._failing.values() if now - since > self._deadline)
        return next(late, None)

    def _work(self) -> None:
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting)
                name = self._running = next(iter(self._waiting))
                upload = self._waiting.pop(name)
            try:
                upload()
            except (TemporaryError, StoreRefused, OSError) as error:
                self._again(name, upload, error, next(pauses))
            except BaseException as error:  # noqa: BLE001 -- the training's thread raises it
                with self._change:
                    self._running, self._final = None, error
                    self._change.notify_all()
                return
            else:
                pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                with self._change:
                    self._running = None
                    if self._failing.pop(name, None) and not self._failing:
                        print("all failed uploads are in the store now", flush=True)
                    self._change.notify_all()

    def _again(self, name: str, upload: Upload, error: Exception, pause: float) -> None:
        """Queue the upload again, unless a newer one has its name."""
        with self._change:
            self._running = None
            if not self._failing:
                print(f"warning: {error}; training continues, and tries it again", flush=True)
            _, since = self._failing.get(name, (error, self._clock()))
            self._failing[name] = error, since
            self._waiting.setdefault(name, upload)
            self._change.notify_all()
            newest = dict(self._waiting)
            # A new upload does not wait: at least its files can be written to the disk.
            self._change.wait_for(lambda: self._waiting != newest, pause)
