"""The user's side of a training: their module, the Keras that it uses, and their callbacks."""
