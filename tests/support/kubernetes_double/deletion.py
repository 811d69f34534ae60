"""Deletion of objects: pods end gracefully, and dependants are deleted after their owners."""

import asyncio
from collections.abc import Callable

from support.kubernetes_double import answers
from support.kubernetes_double.objects import (
    NAMESPACES,
    PODS,
    Event,
    Kind,
    Manifest,
    Objects,
    Selection,
    Stored,
    mark_deleted,
)

#: Seconds from the end of an owner to the deletion of its dependants.
_COLLECT = 0.05

#: Called with a pod that is to end, and its grace period in seconds.
EndPod = Callable[[Stored, float], None]


class Deletion:
    """Deletes on request, and garbage-collects objects without owners."""

    def __init__(self, objects: Objects, kinds: tuple[Kind, ...], end_pod: EndPod) -> None:
        self._objects = objects
        self._kinds = kinds
        self._end_pod = end_pod
        objects.listeners.append(self._collect)

    def delete(self, stored: Stored, options: Manifest) -> None:
        """Begin to delete an object, in the background its dependants.

        Raises:
            ApiError: a precondition does not hold.
        """
        expected, version = options.get("preconditions") or {}, str(stored.version)
        if expected.get("uid", stored.uid) != stored.uid:
            what = f"the UID in the precondition ({expected['uid']}) does not match"
            raise answers.modified(stored.kind.plural, stored.name, what)
        if expected.get("resourceVersion", version) != version:
            what = "the ResourceVersion in the precondition does not match"
            raise answers.modified(stored.kind.plural, stored.name, what)
        if stored.kind is PODS:
            self._delete_pod(stored, options.get("gracePeriodSeconds"))
            return
        for kind in self._kinds if stored.kind is NAMESPACES else ():
            for within in self._objects.select(Selection(kind, stored.name)):
                self.delete(within, {})
        self._objects.remove(stored)

    def _delete_pod(self, stored: Stored, given: float | str | None) -> None:
        manifest = stored.manifest()
        spec, metadata = manifest["spec"], manifest["metadata"]
        grace = float(spec["terminationGracePeriodSeconds"] if given is None else given)
        ended = manifest["status"].get("phase") in ("Succeeded", "Failed")
        if ended or grace == 0 or "nodeName" not in spec:
            # Removed at once; the process of a pod deleted by force ends a moment later.
            self._end_pod(stored, 0)
            self._objects.remove(stored)
        elif not stored.deleting or metadata["deletionGracePeriodSeconds"] > grace:
            self._objects.change(stored, lambda it: mark_deleted(it, grace))
            self._end_pod(stored, grace)

    def _collect(self, event: Event) -> None:
        """The garbage collector: it receives changes, and acts a moment later."""
        stored, later = event.stored, asyncio.get_running_loop().call_later
        if event.type == "DELETED":
            for dependant in self._objects.dependants(stored.uid):
                later(_COLLECT, self._collect_one, dependant)
        elif event.type == "ADDED" and stored.owners:
            later(_COLLECT, self._collect_one, stored)

    def _collect_one(self, stored: Stored) -> None:
        now = self._objects.present(stored)
        if now and not now.deleting and not any(map(self._objects.exists, now.owners)):
            self.delete(now, {})
