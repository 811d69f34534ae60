"""The user's part of a training: their module, their choice of Keras, and their callbacks."""
