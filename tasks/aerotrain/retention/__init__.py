"""Retention: removes what is old from the store of all pipelines, by a policy.

``plan`` decides what goes and why the rest is kept, and ``removal`` carries a plan out.
"""
