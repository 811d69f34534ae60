"""What each verb does to the objects; this module does not depend on HTTP."""

import base64
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from support.kubernetes_double import admission, answers
from support.kubernetes_double.access import Access
from support.kubernetes_double.deletion import Deletion
from support.kubernetes_double.kinds import PODS, REVIEWS, Kind, Target, read_fields, read_selector
from support.kubernetes_double.objects import Manifest, Objects, Stored
from support.kubernetes_double.watches import fields_match

#: Code and body of a response.
Answer = tuple[int, bytes]


class Api:
    """The API of the cluster: reads and changes its objects."""

    def __init__(self, objects: Objects, access: Access, deletion: Deletion) -> None:
        self._objects = objects
        self._access = access
        self._deletion = deletion
        #: Called with each new pod after it is stored.
        self.run_pod: Callable[[Stored], None] = lambda _: None

    def answer(self, target: Target, query: Mapping[str, str], body: Manifest) -> Answer:
        """Carry out the request.

        Raises:
            ApiError: the request cannot be carried out.
        """
        dry = query.get("dryRun") == "All"
        if target.kind is REVIEWS:
            return 201, json.dumps(self._access.review(body)).encode()
        if target.subresource == "eviction":
            return self._evict(self._found(target), body)
        if target.subresource not in ("", "status"):
            raise answers.no_such_path()
        match target.verb:
            case "create":
                return self._create(target, body, dry)
            case "get":
                return 200, self._found(target).whole()
            case "list":
                return 200, self._list(target.kind, target.namespace, query)
            case "patch" | "update":
                return self._update(target, body, dry)
            case "delete":
                return self._delete(self._found(target), {**query, **body}, dry)
            case "deletecollection":
                listed = self._list(target.kind, target.namespace, query)
                for item in json.loads(listed)["items"]:
                    metadata = item["metadata"]
                    found = self._objects.find(
                        target.kind, metadata.get("namespace", ""), metadata["name"]
                    )
                    if found:
                        self._deletion.delete(found, {**query, **body})
                return 200, listed
        raise answers.no_such_path()

    def _found(self, target: Target) -> Stored:
        found = self._objects.find(target.kind, target.namespace, target.name)
        if found is None:
            raise answers.not_found(target.kind.plural, target.name, target.kind.group)
        return found

    def _create(self, target: Target, body: Manifest, dry: bool) -> Answer:
        manifest = admission.prepare(target.kind, target.namespace, body, self._objects)
        self._access.check_quota(target.kind, manifest, self._objects)
        if dry:
            whole = {"kind": target.kind.kind, "apiVersion": target.kind.api_version, **manifest}
            return 201, json.dumps(whole).encode()
        stored = self._objects.put(target.kind, manifest)
        answer = stored.whole()
        if target.kind is PODS:
            self.run_pod(stored)
        return 201, answer

    def _list(self, kind: Kind, namespace: str, query: Mapping[str, str]) -> bytes:
        found = self._objects.select(kind, namespace, read_selector(query.get("labelSelector", "")))
        fields = read_fields(kind, query.get("fieldSelector", ""))
        if fields:
            found = [stored for stored in found if fields_match(stored, fields)]
        metadata: dict[str, Any] = {"resourceVersion": str(self._objects.version)}
        if query.get("continue"):
            version, *after = json.loads(base64.urlsafe_b64decode(query["continue"]))
            if version < self._objects.oldest[kind]:
                raise answers.ApiError(
                    410,
                    "The provided continue parameter is too old to display a consistent list "
                    "result. You can start a new list without the continue parameter.",
                )
            metadata["resourceVersion"] = str(version)
            found = [stored for stored in found if [stored.namespace, stored.name] > after]
        limit = int(query.get("limit") or 0)
        if 0 < limit < len(found):
            last = found[limit - 1]
            token = json.dumps([int(metadata["resourceVersion"]), last.namespace, last.name])
            metadata["continue"] = base64.urlsafe_b64encode(token.encode()).decode()
            metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        opening = json.dumps(head).encode()[:-1] + b',"items":['
        return opening + b",".join(stored.encoded for stored in found) + b"]}"

    def _update(self, target: Target, body: Manifest, dry: bool) -> Answer:
        stored = self._found(target)
        _check_identity(stored, body.get("metadata") or {})
        before = stored.manifest()
        after = merge(before, body) if target.verb == "patch" else {**before, **body}
        for key in ("uid", "creationTimestamp", "name", "namespace", "resourceVersion"):
            if key in before["metadata"]:
                after["metadata"][key] = before["metadata"][key]
        if target.kind is PODS and after["spec"] != before["spec"]:
            message = (
                "Forbidden: pod updates may not change fields other than "
                "`spec.containers[*].image`,`spec.initContainers[*].image`,"
                "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
                "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it "
                "was previously negative)"
            )
            raise answers.invalid("Pod", stored.name, [("spec", "FieldValueForbidden", message)])
        admission.check(target.kind, after)
        if dry or after == before:  # a change without effect makes no new version
            return 200, json.dumps(after).encode()
        newer = self._objects.put(target.kind, after)
        # A pod is removed only after its node has reported the end of its containers.
        is_over = (
            target.kind is not PODS or after["metadata"].get("deletionGracePeriodSeconds") == 0
        )
        if newer.deleting and not after["metadata"].get("finalizers") and is_over:
            self._objects.remove(newer)
        return 200, newer.whole()

    def _delete(self, stored: Stored, options: Manifest, dry: bool) -> Answer:
        if "gracePeriodSeconds" in options:
            options["gracePeriodSeconds"] = int(options["gracePeriodSeconds"])
        if dry or options.get("dryRun"):
            return 200, stored.whole()
        left = self._deletion.delete(stored, options)
        if left or stored.kind is PODS:
            return 200, (left or stored).whole()
        details: dict[str, Any] = {"name": stored.name, "kind": stored.kind.plural}
        if stored.kind.group:
            details["group"] = stored.kind.group
        return 200, json.dumps(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": {**details, "uid": stored.uid},
            }
        ).encode()

    def _evict(self, stored: Stored, body: Manifest) -> Answer:
        """Evict a pod, as the drain of a node does."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": None,
            "lastTransitionTime": admission.timestamp(),
        }
        marked = self._objects.change(
            stored, lambda it: it["status"].setdefault("conditions", []).append(condition)
        )
        self._deletion.delete(marked or stored, body.get("deleteOptions") or {})
        said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return 201, json.dumps({**said, "code": 201}).encode()


def _check_identity(stored: Stored, metadata: Mapping[str, Any]) -> None:
    version = metadata.get("resourceVersion")
    if version and version != str(stored.version):
        raise answers.modified(stored.kind.plural, stored.name)
    uid = metadata.get("uid")
    if uid and uid != stored.uid:
        cause = ("metadata.uid", "FieldValueInvalid", f'Invalid value: "{uid}": field is immutable')
        raise answers.invalid(stored.kind.kind, stored.name, [cause])


def merge(before: Any, patch: Any) -> Any:
    """A JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
