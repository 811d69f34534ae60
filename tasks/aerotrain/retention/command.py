"""``aerotrain retention``: print what a policy would remove, and remove it where that is asked."""

import time
from argparse import ArgumentParser, Namespace
from dataclasses import fields

from aerotrain.contract.retention import RetentionPolicy
from aerotrain.flags import add_fields
from aerotrain.retention.plan import make_plan
from aerotrain.retention.removal import remove
from aerotrain.store import open_store


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command: the policy, and what of the store it is applied to."""
    parser.add_argument("store", help="URL of the folder of pipelines, such as s3://bucket")
    parser.add_argument("--pipeline", help="the id of one DAG; without it, all pipelines")
    parser.add_argument("--delete", action="store_true", help="remove; without it, nothing is")
    parser.add_argument("--kept", action="store_true", help="also list what is kept, and why")
    add_fields(parser, RetentionPolicy, leave_out=())


def run(given: Namespace) -> None:
    """Print the plan, and carry it out with ``--delete``."""
    policy = RetentionPolicy.of(
        {each.name: getattr(given, each.name) for each in fields(RetentionPolicy)}
    )
    store = open_store(given.store)
    plan = make_plan(store, policy, time.time(), given.pipeline)
    print(plan.to_text(with_kept=given.kept))
    if not given.delete:
        print("nothing is removed; --delete removes what is listed")
        return
    done = remove(store, plan)
    print(f"removed: {done['items']:,} of {done['bytes']:,} bytes; left: {done['left']:,}")
