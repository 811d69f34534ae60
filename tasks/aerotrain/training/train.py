"""The step ``train``: chief or peer, a server for them, or the evaluator, by the replica's role."""

from aerotrain.contract.replicas import Role
from aerotrain.replica import Replica


def run(replica: Replica) -> str | None:
    """Train as chief or peer, serve the training in another role, or evaluate its checkpoints.

    Returns:
        The URL of the trained model's manifest.
    """
    # Each role imports only what it needs: Keras takes seconds, and memory that ps never use.
    serves = replica.name.role is Role.WORKER and not replica.job.rules.peers
    if serves or replica.name.role in (Role.PS, Role.INPUT, Role.DISPATCHER):
        from aerotrain.training.servers import serve

        serve(replica)
        return None
    if replica.name.role is Role.EVALUATOR:
        from aerotrain.training.hooks.validation import follow

        follow(replica)
        return None
    from aerotrain.training.chief import train

    return train(replica)
