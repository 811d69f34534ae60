"""Which objects are a set's own.

Labels and names are anybody's: people copy pods, restore backups, and may have had a name first.
A uid is given once. So a set is its owner's uid, what it made has that uid for an owner, and
nothing else is believed, changed or deleted.
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
    """The uid of an object that the API has shown."""
    uid: str = manifest["metadata"]["uid"]
    return uid


def reference_to(owner: Manifest) -> dict[str, str]:
    """What an object of the set has in its ownerReferences."""
    name = owner["metadata"]["name"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid_of(owner)}


def is_owned_by(manifest: Manifest, uid: str) -> bool:
    """Whether the object is of the set whose owner has this uid."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == uid for each in owners)


def is_of_a_job(manifest: Manifest, name: str) -> bool:
    """Whether the object is of a set of that job, be it one that is gone already."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return any((each.get("kind"), each.get("name")) == ("ConfigMap", name) for each in owners)


def is_an_owner(manifest: Manifest, name: str) -> bool:
    """Whether a ConfigMap is the owner of a set of that job, as a task has made it."""
    labels = manifest["metadata"].get("labels") or {}
    needed = {ATTEMPT, DESCRIPTION, HOLDER}
    return labels.get(JOB_LABEL) == name and needed <= annotations(manifest).keys()


def is_at(manifest: Manifest, address: Address) -> bool:
    """Whether a ConfigMap is the owner of the very set at ``address``."""
    return (
        is_an_owner(manifest, address.name)
        and annotations(manifest)[ATTEMPT] == address.attempt
        and address.uid in ("", uid_of(manifest))
    )


def in_the_way(manifest: Manifest, namespace: str) -> str:
    """What is said of an object that has a name of ours and is another's."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return (
        f"there is a {kind} {name} in {namespace} that is not of this job's making; delete it or "
        "give it another name, if you know whose it is"
    )
