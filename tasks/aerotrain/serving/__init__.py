"""What an export makes: a SavedModel, its verification in another process, a version number.

``servable`` makes the SavedModel of transform and model, ``verify`` loads it without Keras and
compares predictions, and ``formats`` converts it. ``versions`` assigns numbers, ``alias`` says
which version is served, ``pull`` keeps a server's folder so, and ``origin`` says what a version was
made of. A version carries ``requests`` of real records, in TensorFlow Serving's messages, and the
names of its ``classes``; ``rest`` has its REST API, in which ``development`` answers and
``serve_check`` asks.
"""
