"""Deletion of objects: pods end gracefully, and dependants are deleted after their owners."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from support.kubernetes_double import answers
from support.kubernetes_double.admission import timestamp
from support.kubernetes_double.kinds import NAMESPACES, PODS, Kind
from support.kubernetes_double.nodes import Tempo
from support.kubernetes_double.objects import Event, Manifest, Objects, Stored

FOREGROUND = "foregroundDeletion"

#: Called with a pod that is to end, and its grace period in seconds.
EndPod = Callable[[Stored, float], None]


class Deletion:
    """Deletes on request, and garbage-collects objects without owners."""

    def __init__(self, objects: Objects, tempo: Tempo, kinds: tuple[Kind, ...]) -> None:
        self._objects = objects
        self._tempo = tempo
        self._kinds = kinds
        self.end_pod: EndPod = lambda stored, _: objects.remove(stored)
        objects.listeners.append(self._collect)

    def delete(self, stored: Stored, options: Manifest) -> Stored | None:
        """Begin to delete; returns the object in its new state, or None if it was removed at once.

        Raises:
            ApiError: a precondition does not hold.
        """
        _check_preconditions(stored, options.get("preconditions") or {})
        policy = options.get("propagationPolicy", "Background")
        if policy == "Orphan":
            for each in self._objects.dependants(stored.uid):
                self._objects.change(each, lambda it: _disown(it, stored.uid))
        if policy == "Foreground" and self._objects.dependants(stored.uid):
            marked = self._objects.change(stored, _mark_foreground)
            for each in self._objects.dependants(stored.uid):
                self.delete(each, {})
            return marked
        if stored.kind is PODS:
            return self._delete_pod(stored, options.get("gracePeriodSeconds"))
        if stored.kind is NAMESPACES:
            for kind in self._kinds:
                for each in self._objects.select(kind, stored.name) if kind.namespaced else ():
                    self.delete(each, {})
        if stored.manifest()["metadata"].get("finalizers"):
            return self._objects.change(stored, lambda it: _mark(it, 0))
        self._objects.remove(stored)
        return None

    def _delete_pod(self, stored: Stored, grace: float | None) -> Stored | None:
        manifest = stored.manifest()
        default = manifest["spec"].get("terminationGracePeriodSeconds", 30)
        grace = default if grace is None else grace
        ended = manifest["status"].get("phase") in ("Succeeded", "Failed")
        if ended or grace == 0 or "nodeName" not in manifest["spec"]:
            # Removed at once; the process of a pod deleted by force ends a moment later.
            self.end_pod(stored, 0)
            self._objects.remove(stored)
            return None
        if stored.deleting and manifest["metadata"]["deletionGracePeriodSeconds"] <= grace:
            return stored
        marked = self._objects.change(stored, lambda it: _mark(it, grace))
        self.end_pod(stored, grace)
        return marked

    def _collect(self, event: Event) -> None:
        """The garbage collector: it receives changes, and acts a moment later."""
        stored = event.stored
        lost = event.type == "DELETED" and self._objects.dependants(stored.uid)
        orphan = event.type == "ADDED" and stored.owners and not self._has_owner(stored)
        if lost or orphan:
            later = asyncio.get_running_loop().call_later
            later(self._tempo.collect, self._collect_of, stored.uid)
            if orphan:
                later(self._tempo.collect, self._collect_one, stored)
        if event.type == "DELETED":
            for uid in stored.owners:
                self._finish_foreground(uid)

    def _collect_of(self, uid: str) -> None:
        for each in self._objects.dependants(uid):
            self._collect_one(each)

    def _collect_one(self, stored: Stored) -> None:
        now = self._objects.present(stored)
        if now and not now.deleting and not self._has_owner(now):
            self.delete(now, {})

    def _has_owner(self, stored: Stored) -> bool:
        return any(self._objects.exists(uid) for uid in stored.owners)

    def _finish_foreground(self, uid: str) -> None:
        if self._objects.dependants(uid):
            return
        for kind in self._kinds:
            for owner in self._objects.select(kind, ""):
                if owner.uid == uid and owner.deleting and kind is not PODS:
                    self._objects.remove(owner)


def _check_preconditions(stored: Stored, expected: dict[str, Any]) -> None:
    if expected.get("uid", stored.uid) != stored.uid:
        raise answers.precondition(
            stored.kind.kind, stored.name, "UID", expected["uid"], stored.uid
        )
    version = str(stored.version)
    if expected.get("resourceVersion", version) != version:
        raise answers.precondition(
            stored.kind.kind, stored.name, "ResourceVersion", expected["resourceVersion"], version
        )


def _mark(manifest: Manifest, grace: float) -> None:
    metadata = manifest["metadata"]
    metadata["deletionTimestamp"] = timestamp(time.time() + grace)
    metadata["deletionGracePeriodSeconds"] = grace


def _mark_foreground(manifest: Manifest) -> None:
    _mark(manifest, 0)
    finalizers = manifest["metadata"].setdefault("finalizers", [])
    if FOREGROUND not in finalizers:
        finalizers.append(FOREGROUND)


def _disown(manifest: Manifest, uid: str) -> None:
    metadata = manifest["metadata"]
    metadata["ownerReferences"] = [o for o in metadata["ownerReferences"] if o["uid"] != uid]
