"""The user's part of a training: their module, their choice of Keras, and their callbacks.

``code`` is the module, ``keras_adapter`` has all differences of Keras 3 and tf_keras
(``legacy_keras``). ``checks`` and ``whole_batches`` report what a strategy does not support, or
computes otherwise, before training starts; ``error_messages`` makes one sentence of an error.
``callbacks`` calls the user's, and has a table of Keras's own.
"""
