"""Sentences about the recovery of a job that more than one side writes."""

from collections.abc import Sequence


def say_unresponsive(names: Sequence[str]) -> str:
    """A sentence for people that names unresponsive replicas; programs use the message."""
    return f"{' and '.join(names)} {'does' if len(names) == 1 else 'do'} not answer"
