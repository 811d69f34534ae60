"""How many steps a training takes, and where its epochs end."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``epochs`` times over ``records`` records, ``batch_size`` of them a step."""

    records: int
    batch_size: int
    epochs: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps until each record was seen once; the last may be of a smaller batch."""
        return -(-self.records // self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def position(self, step: int) -> tuple[int, int]:
        """The epoch, from 0, that ``step`` steps have led into, and the steps of it done."""
        return divmod(step, self.steps_per_epoch)

    def left_in_epoch(self, step: int) -> int:
        """Steps from ``step`` to the end of its epoch."""
        return self.steps_per_epoch - self.position(step)[1]
