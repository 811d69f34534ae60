"""The private names of Keras, tf_keras and TensorFlow that this project uses, all of them.

Each function links to the code on which it depends, in the version that it was tried with;
pyproject.toml admits no other minor version. ruff rejects such names everywhere else (SLF001,
TID251).
"""
