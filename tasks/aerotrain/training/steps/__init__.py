"""One training step, for each kind of strategy.

``step`` does what ``keras.Model.train_step`` does, in the same order, with metric states as values
that are summed (``state``). ``microbatches`` divides a replica's part of a batch and exchanges
gradients once. ``remote`` is the step of a worker under ``parameter_server``: small variables
travel in one message, and of large tables only the rows that a batch looks up. ``custom`` runs a
model's own ``train_step``. ``updates`` is about the updates of variables.
"""
