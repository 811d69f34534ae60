"""Hooks of a training: report, callbacks, validation."""
