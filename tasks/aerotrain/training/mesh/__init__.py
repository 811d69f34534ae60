"""Training over a mesh of devices, by DTensor."""
