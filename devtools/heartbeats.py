"""Components of Airflow that are alive and do nothing, such as after a disk was full."""

import time
from collections.abc import Callable, Iterable, Mapping

from aerotrain.contract.errors import TemporaryError
from devtools.components import Component

#: Seconds between two requests, and seconds without a heartbeat after which a component is hung.
#: Airflow says so after 30 s; on a busy machine a heartbeat may come a minute late.
_ASK_EVERY, _PATIENCE = 15.0, 120.0


class Heartbeats:
    """Ends components that send no heartbeat, so that they are started again.

    ``unhealthy`` returns the names of those without one; none while the database is unavailable.
    """

    def __init__(
        self,
        unhealthy: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unhealthy = unhealthy
        self._clock = clock
        self._next = 0.0
        self._since: dict[str, float] = {}

    def end_hung(self, components: Mapping[str, Component]) -> list[str]:
        """Kill those of ``components`` that are hung; returns a sentence about each."""
        now = self._clock()
        if now < self._next:
            return []
        self._next = now + _ASK_EVERY
        try:
            names = set(self._unhealthy()) & components.keys()
        except TemporaryError:  # the API server itself is away
            names = set()
        self._since = {name: self._since.get(name, now) for name in names}
        hung = [name for name, since in self._since.items() if now - since >= _PATIENCE]
        for name in hung:
            del self._since[name]
            components[name].kill()
        return [f"{name} sent no heartbeat for {_PATIENCE:.0f} s and was ended" for name in hung]
