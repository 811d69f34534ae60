"""The context of a training: what its checkpoints and its hooks work with."""

import gc
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.training import TrainArguments
from aerotrain.replica import Replica
from aerotrain.training.background.services import BackgroundServices
from aerotrain.training.input.order import Schedule
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.steps.step import TrainStep


class Distribution(ABC):
    """The devices and processes that train one model.

    With peers, each of these processes must call ``sum``, ``clock``, ``numbers`` and ``reach`` at
    the same points of its loop, for they wait for each other.

    Its chief decides, and without peers each process for itself. A worker that continued after the
    chief has stopped would wait for it forever. A worker with another value of a variable, or
    another first checkpoint, would train another model.
    """

    def __init__(self, *, has_peers: bool) -> None:
        #: Whether other processes run the same loop.
        self.has_peers = has_peers
        self.is_chief = True
        self._created: list[weakref.ref[tf.Variable]] = []
        self._before: list[Sequence[tf.Tensor]] | None = None

    @abstractmethod
    def scope(self) -> AbstractContextManager[Any]:
        """A scope in which variables, including those of Keras, are created and assigned."""

    @abstractmethod
    def sum(self, values: tf.Tensor) -> Any:
        """The sum of ``values`` over all replicas, as an array."""

    @abstractmethod
    def local(self, variable: tf.Variable) -> Sequence[tf.Tensor]:
        """What this process holds of the variable, which no other process needs to read, too."""

    def clock(self) -> float:
        """Seconds, by which checkpoints are due; the chief's if all processes write them."""
        return time.monotonic()

    def wait_for_all(self) -> None:
        """A barrier for all replicas that compute together with this one.

        A process that ends closes the connections of the others, so none may end before the chief
        is done.
        """
        if self.has_peers:
            self.sum(tf.ones([]))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Its scope, which records the variables that are created, as by the user's module."""

        def record(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            variable = create(**options)
            self._created.append(weakref.ref(variable))
            return variable

        with self.scope(), tf.variable_creator_scope(record):
            yield

    def created(self) -> list[tf.Variable]:
        """The recorded variables of numbers that are still in use, in all replicas in one order."""
        gc.collect()  # what is in cycles may be freed earlier in some replicas than in others
        found = [variable for each in self._created if (variable := each()) is not None]
        return [each for each in found if each.dtype != tf.string]

    def watch(self, variables: Sequence[tf.Variable]) -> None:
        """Let the next ``reach`` find which of these variables the chief changes from here on.

        Their values are kept until then. A CPU's are not copied before they are changed.
        """
        if variables and self.has_peers and self.is_chief and self._before is None:
            self._before = self._values(variables)

    def reach(self, stop: bool, variables: Sequence[tf.Variable] = ()) -> bool:
        """Return whether the chief has decided to stop.

        The chief's values of those of ``variables`` that it has changed reach all replicas.
        """
        if not self.has_peers:
            return stop
        changed = [False] * len(variables)
        if self._before is not None:
            changed = [bool(each) for each in _differ(self._before, self._values(variables))]
            self._before = None
        stops, *flags = self._of_chief([float(stop), *map(float, changed)])
        for variable, is_changed in zip(variables, flags, strict=True):
            if is_changed:
                self._send(variable)
        return bool(stops)

    def numbers(self, own: Sequence[int]) -> list[int]:
        """The chief's numbers; every replica passes as many of its ``own``."""
        if not self.has_peers:
            return list(own)
        return [round(each) for each in self._of_chief(own)]

    def _values(self, variables: Sequence[tf.Variable]) -> list[Sequence[tf.Tensor]]:
        return [self.local(each) for each in variables]

    def _send(self, variable: tf.Variable) -> None:
        """Assign the chief's value on all replicas, as it is to the bit."""
        dtype = variable.dtype.as_numpy_dtype
        own = variable.numpy() if self.is_chief else np.zeros(variable.shape, dtype)
        words = np.ascontiguousarray(own).reshape(-1).view(_WORDS[min(own.itemsize, 4)])
        sent = self._of_chief(words).astype(words.dtype)
        if not self.is_chief:
            variable.assign(sent.view(dtype).reshape(variable.shape))

    def _of_chief(self, values: Any) -> Any:
        own = np.concatenate([[1.0], values])
        # float64 represents the number of any step, and any 32 bits, exactly.
        sent = tf.constant(own if self.is_chief else np.zeros_like(own), tf.float64)
        # Each of the chief's devices adds the chief's values.
        sums = self.sum(sent)
        return sums[1:] / sums[0]


class StrategyDistribution(Distribution):
    """The ``Distribution`` of a ``tf.distribute.Strategy``, whose chief writes the checkpoints."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        all_reduces = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        super().__init__(has_peers=all_reduces and strategy.num_replicas_in_sync > 1)
        self.strategy = strategy
        self._sum = tf.function(self._reduced, autograph=False, reduce_retracing=True)

    def scope(self) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def sum(self, values: tf.Tensor) -> Any:
        return self._sum(values).numpy()

    def _reduced(self, values: tf.Tensor) -> tf.Tensor:
        own = self.strategy.run(lambda: tf.identity(values))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)

    def local(self, variable: tf.Variable) -> Sequence[tf.Tensor]:
        first, *_ = self.strategy.experimental_local_results(variable)
        return [first.read_value()]


#: Integers by their size in bytes: numbers that any bits are exactly.
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _differ(before: Any, after: Any) -> list[tf.Tensor]:
    """Whether values of variables, each a list of parts, differ in a bit, for each variable."""

    def differs(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any(tf.not_equal(_bits(one), _bits(other)))

    return [
        tf.reduce_any([differs(*pair) for pair in zip(*parts, strict=True)])
        for parts in zip(before, after, strict=True)
    ]


def _bits(value: tf.Tensor) -> tf.Tensor:
    """Of floating point numbers the bits, because NaN differs from itself, and 0 not from -0."""
    integers = {2: tf.int16, 4: tf.int16, 8: tf.int64}  # a GPU compares no int32
    is_number = value.dtype.is_floating or value.dtype.is_integer
    return tf.bitcast(value, integers.get(value.dtype.size, value.dtype)) if is_number else value


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The parts of a training in one replica, which exist before its first step.

    ``counter`` is an int64 variable, the number of steps done on all workers.
    """

    replica: Replica
    pipeline: InputPipeline
    services: BackgroundServices
    distribution: Distribution
    model: keras.Model
    counter: tf.Variable
    step: TrainStep

    @property
    def is_chief(self) -> bool:
        return self.replica.is_chief

    @property
    def arguments(self) -> TrainArguments:
        return self.pipeline.arguments

    @property
    def schedule(self) -> Schedule:
        return self.pipeline.schedule

    def steps_done(self) -> int:
        """The number of steps done; under a coordinator it grows while steps are in flight."""
        return int(self.counter.numpy())
