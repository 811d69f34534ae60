"""The number of steps of a training, and the ends of its epochs."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``epochs`` passes over ``records`` records, in batches of ``batch_size``."""

    records: int
    batch_size: int
    epochs: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read each record once; the last batch may be smaller."""
        return -(-self.records // self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def position(self, step: int) -> tuple[int, int]:
        """The epoch, from 0, that follows ``step`` steps, and its number of steps done."""
        return divmod(step, self.steps_per_epoch)

    def left_in_epoch(self, step: int) -> int:
        """Steps from ``step`` to the end of its epoch."""
        return self.steps_per_epoch - self.position(step)[1]
