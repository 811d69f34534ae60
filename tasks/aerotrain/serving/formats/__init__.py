"""Other formats of an exported model: LiteRT and ONNX, each verified in its own runtime.

``converter.py`` runs itself in a process for each format, which uses ``to_litert.py`` or
``to_onnx.py``. A format that lacks one of the model's operations is refused with its name.
"""
