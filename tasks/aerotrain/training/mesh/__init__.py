"""Training on a mesh of devices, by DTensor.

Variables have a layout, and a step reads and then assigns each of them once, because the order of
reads after writes is undefined on a mesh.
"""
