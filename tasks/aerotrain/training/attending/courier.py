"""One thread that brings things to the store while training goes on.

Whatever is given to it under a name replaces what waits under that name, so no more is held
than the newest of each kind. Where the store is away, it tries again until it is back.
"""

import threading
import time
from collections.abc import Callable

from aerotrain.contract.errors import TemporaryError
from aerotrain.store import StoreRefused

#: Seconds between two tries, twice as long each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0

Errand = Callable[[], None]


class Courier:
    """Runs errands one after another, and those again that failed for what may pass.

    ``deadline`` is for how many seconds they may fail in a row.
    """

    def __init__(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline = deadline
        self._clock = clock
        self._change = threading.Condition()
        self._waiting: dict[str, Errand] = {}
        self._running: str | None = None
        self._final: BaseException | None = None
        #: Errands that have failed last time, with why, and since when.
        self._failing: dict[str, tuple[Exception, float]] = {}
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
        self._thread.start()

    def send(self, name: str, errand: Errand) -> None:
        """Have ``errand`` run soon, in place of what waits under ``name``."""
        with self._change:
            self._waiting[name] = errand
            self._change.notify_all()

    def check(self) -> None:
        """Raise what no further try can mend.

        Raises:
            FinalError: an errand failed for good.
            TemporaryError: the store has been away for longer than the deadline.
        """
        with self._change:
            if self._final is not None:
                raise self._final
            if (error := self._late()) is not None:
                raise TemporaryError(
                    f"the store has failed for more than {self._deadline:g} s: {error}"
                ) from error

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is left to do, or nothing can be done any more; whether it is done."""
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
        pause = _FIRST_PAUSE
        while True:
            name, errand = self._next()
            try:
                errand()
            except (TemporaryError, StoreRefused, OSError) as error:
                self._again(name, errand, error, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            except BaseException as error:  # noqa: BLE001 -- the training's thread raises it
                with self._change:
                    self._running, self._final = None, error
                    self._change.notify_all()
                return
            else:
                pause = _FIRST_PAUSE
                with self._change:
                    self._running = None
                    if self._failing.pop(name, None) and not self._failing:
                        print("what has failed to reach the store is there now", flush=True)
                    self._change.notify_all()

    def _next(self) -> tuple[str, Errand]:
        with self._change:
            while not self._waiting:
                self._change.wait()
            self._running = next(iter(self._waiting))
            return self._running, self._waiting.pop(self._running)

    def _again(self, name: str, errand: Errand, error: Exception, pause: float) -> None:
        """Let the errand wait with the others, unless a newer one has taken its place."""
        with self._change:
            self._running = None
            if not self._failing:
                print(f"warning: {error}; training goes on, and tries it again", flush=True)
            _, since = self._failing.get(name, (error, self._clock()))
            self._failing[name] = error, since
            self._waiting.setdefault(name, errand)
            self._change.notify_all()
            newest = dict(self._waiting)
            # Something new may be written to the disk at least, so it is not kept waiting.
            self._change.wait_for(lambda: self._waiting != newest, pause)
