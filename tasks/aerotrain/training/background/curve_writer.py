"""The curves of this training, written to the store every few seconds."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from aerotrain.contract.curves import Curves, Point
from aerotrain.contract.layout import CURVES
from aerotrain.store import MissingError, Store
from aerotrain.training.background.uploader import Uploader
from aerotrain.training.checkpoints.interval import Interval

#: Seconds between two points, and between two uploads.
_EVERY = 5.0


class CurveWriter:
    """Adds points to the curves of earlier processes of the same training.

    ``put`` writes the object. The rest is as for ``Curves``.
    """

    def __init__(
        self,
        store: Store,
        uploader: Uploader,
        put: Callable[[str, bytes], object],
        *,
        steps: int,
        data: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._uploader = uploader
        self._put_object = put
        self._now = now
        self._lock = threading.Lock()
        self._curves = Curves(steps, data)
        self._has_earlier = False
        self._point, self._upload = Interval(_EVERY, clock), Interval(_EVERY, clock)

    def add(self, step: int, metrics: Mapping[str, float], *, at_once: bool = False) -> None:
        """Add a point if one is due, or with ``at_once``; the uploader writes the curves."""
        if self._point.due() or at_once:
            self._add(Point(at=self._now(), step=step, metrics=metrics), at_once=at_once)

    def add_epoch(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a whole epoch, counted from 0, after which ``step`` steps are done."""
        self._add(Point(at=self._now(), step=step, metrics=metrics, epoch=epoch), at_once=False)

    def publish(self) -> None:
        """Write the curves now, in the background."""
        self._uploader.send(CURVES, self._put)

    def _add(self, point: Point, *, at_once: bool) -> None:
        with self._lock:
            self._curves.add(point)
        if self._upload.due() or at_once:
            self.publish()

    def _put(self) -> None:
        if not self._has_earlier:
            earlier: list[Point] = []
            with suppress(MissingError):
                earlier = Curves.from_bytes(self._store.get(CURVES)).points
            with self._lock:
                own, self._has_earlier = self._curves, True
                self._curves = Curves(own.steps, own.data, earlier)
                for each in own.points:
                    self._curves.add(each)
        with self._lock:
            content = self._curves.to_bytes()
        self._put_object(CURVES, content)
