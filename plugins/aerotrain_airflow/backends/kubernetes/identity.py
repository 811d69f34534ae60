"""Decides which objects belong to a group.

Labels and names are not reliable: users copy pods, restore backups, or have used a name first. A
uid is unique. So a group is identified by its owner's uid, its objects have that uid in their owner
references, and no other object is used, changed or deleted.
"""

from collections.abc import Mapping
from typing import Any

from aerotrain_airflow.backends.kubernetes.address import (
    ATTEMPT,
    DESCRIPTION,
    HOLDER,
    JOB_LABEL,
    Address,
    annotations,
)

Manifest = Mapping[str, Any]


def uid_of(manifest: Manifest) -> str:
    """The uid of an object from the API."""
    uid: str = manifest["metadata"]["uid"]
    return uid


def reference_to(owner: Manifest) -> dict[str, str]:
    """The entry for ``owner`` in the ownerReferences of a group's objects."""
    name = owner["metadata"]["name"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid_of(owner)}


def is_owned_by(manifest: Manifest, uid: str) -> bool:
    """Whether the object belongs to the group whose owner has this uid."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == uid for each in owners)


def is_of_a_job(manifest: Manifest, name: str) -> bool:
    """Whether the object belongs to a group of that job, including one already deleted."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any((each.get("kind"), each.get("name")) == ("ConfigMap", name) for each in owners)


def is_an_owner(manifest: Manifest, name: str) -> bool:
    """Whether a ConfigMap is the owner of a group of that job, as a task creates it."""
    labels = manifest["metadata"].get("labels") or {}
    needed = {ATTEMPT, DESCRIPTION, HOLDER}
    return labels.get(JOB_LABEL) == name and needed <= annotations(manifest).keys()


def is_at(manifest: Manifest, address: Address) -> bool:
    """Whether a ConfigMap is the owner of the group at ``address``."""
    return (
        is_an_owner(manifest, address.name)
        and annotations(manifest)[ATTEMPT] == address.attempt
        and address.uid in ("", uid_of(manifest))
    )


def in_the_way(manifest: Manifest, namespace: str) -> str:
    """The error message for a foreign object that has one of the group's names."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return (
        f"there is a {kind} {name} in {namespace} that is not of this job's making; delete it or "
        "give it another name, if you know whose it is"
    )
