"""Hooks of a training: report, callbacks, validation, checkpoints.

``hooks`` is their interface, and calls the user's callbacks, for which the chief alone computes.
``validation`` measures a split, also as the evaluator; ``report`` prints progress and writes
TensorBoard's files; ``checkpointing`` saves.
"""
