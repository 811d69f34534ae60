"""When something is due: kept apart from what is then done."""

from collections.abc import Callable


class Every:
    """Due once in every ``seconds`` of ``clock``, which must never go back."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether it is time; if so, the next time is counted from now."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
