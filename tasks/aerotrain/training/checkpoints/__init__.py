"""The state of a training, read, kept in the store, and found again.

``snapshot`` holds the values of variables on the host, the only part that stops training;
``checkpoints`` writes and publishes them in the background, and ``retention`` keeps the newest.
``metadata`` says whether a checkpoint is of the same training, and ``transfer`` which variables
another training takes from it.
"""
