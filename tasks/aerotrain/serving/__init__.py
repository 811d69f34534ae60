"""What an export makes: a SavedModel, its verification in another process, a version number.

``servable`` makes the SavedModel of transform and model, ``verify`` loads it without Keras and
compares predictions. ``versions`` assigns numbers, ``alias`` says which version is served, and
``pull`` keeps a server's folder so. A version carries ``requests`` of real records, in TensorFlow
Serving's messages, and the names of its ``classes``; ``rest`` has its REST API, in which
``development`` answers and ``serve_check`` asks.
"""
