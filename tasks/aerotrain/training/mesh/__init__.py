"""Training on a mesh of devices, by DTensor."""
