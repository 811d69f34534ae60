"""Hooks of a training: report, callbacks, validation, checkpoints.

``hooks`` is their interface, and calls the user's callbacks, for which ``local_methods`` computes
in the chief alone. ``validation`` measures a split, also for the evaluator; ``report`` prints
progress and writes TensorBoard's files; ``checkpointing`` saves.
"""
