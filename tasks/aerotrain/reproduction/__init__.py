"""Reproduction: what a version was made of, what of that has changed, and the same training again.

``origin`` reads the manifests and compares them with what is there now, and ``retraining`` trains
once more and compares the weights.
"""
