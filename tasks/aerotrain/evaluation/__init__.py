"""The decision whether a model is good enough: metrics by slice, compared with a baseline."""
