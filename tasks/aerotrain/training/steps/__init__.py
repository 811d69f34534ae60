"""One training step, for each kind of strategy.

``step`` does what ``keras.Model.train_step`` does, in the same order, with metric states as values
that are summed (``metric_state``). ``microbatches`` divides a replica's part of a batch and
exchanges gradients once; ``sharing`` makes losses of parts those of the batch. ``remote`` is the
step of a worker under ``parameter_server``: small variables travel in one message, and of large
tables only the rows that a batch looks up. ``custom`` runs a model's own ``train_step``.
``updates`` and ``slices`` are about updates of variables, ``layer_state`` about what layers keep,
``finite`` finds the first step that spoils a weight, and ``clock`` reads the time in a graph.
"""
