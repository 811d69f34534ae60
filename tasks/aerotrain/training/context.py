"""The context of a training: what its checkpoints and its hooks work with."""

from dataclasses import dataclass

import keras
import tensorflow as tf

from aerotrain.contract.training import TrainArguments
from aerotrain.replica import Replica
from aerotrain.training.background.services import BackgroundServices
from aerotrain.training.distribution import ChiefDecisions, CreatedVariables, Distribution
from aerotrain.training.input.order import Schedule
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.steps.step import TrainStep


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """The parts of a training in one replica, which exist before its first step.

    ``counter`` is an int64 variable, the number of steps done on all workers. ``created`` are the
    variables of the user's module and of the model.
    """

    replica: Replica
    pipeline: InputPipeline
    services: BackgroundServices
    distribution: Distribution
    decisions: ChiefDecisions
    model: keras.Model
    counter: tf.Variable
    step: TrainStep
    created: CreatedVariables

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
