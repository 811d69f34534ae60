"""The step ``train``: chief or peer, a server for them, or the evaluator, by the replica's role."""

from typing import Any

from aerotrain.contract.replicas import Role
from aerotrain.replica import Replica, imported


def run(replica: Replica) -> Any:
    """Train as chief or peer, serve the training in another role, or evaluate its checkpoints.

    Returns:
        The URL of the trained model's manifest.
    """
    # Each role imports only what it needs: Keras takes seconds, and memory that ps never use.
    serves = replica.name.role is Role.WORKER and not replica.job.rules.peers
    if serves or replica.name.role in (Role.PS, Role.INPUT):
        return imported("aerotrain.training.servers", "serve")(replica)
    if replica.name.role is Role.EVALUATOR:
        return imported("aerotrain.training.hooks.validation", "follow")(replica)
    return imported("aerotrain.training.chief", "train")(replica)
