"""Authentication, permissions and quotas; by default, every user may do everything."""

from collections.abc import Mapping, Sequence
from typing import Any

from support.kubernetes_double import answers
from support.kubernetes_double.kinds import PODS, QUOTAS, Kind
from support.kubernetes_double.objects import Manifest, Objects

USER = "system:serviceaccount:default:aerotrain"


class Access:
    """The rules of a Role, revoked verbs, the bearer token, and quotas."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.rules: Sequence[Mapping[str, Any]] | None = None  # None: no Role, all allowed
        self.denied: set[tuple[str, str]] = set()

    def allows(self, verb: str, group: str, resource: str) -> bool:
        """Whether a verb is allowed; ``resource`` includes the subresource, as in ``pods/log``."""
        if (verb, resource) in self.denied or ("*", resource) in self.denied:
            return False
        return self.rules is None or any(
            _in(verb, rule.get("verbs", ()))
            and _in(group, rule.get("apiGroups", ()))
            and _in(resource, rule.get("resources", ()))
            for rule in self.rules
        )

    def check(
        self, authorization: str, verb: str, kind: Kind, resource: str, where: tuple[str, str]
    ) -> None:
        """Reject an invalid token, and what the user may not do; ``where``: namespace, name."""
        if self.token and authorization != f"Bearer {self.token}":
            raise answers.ApiError(401, "Unauthorized")
        # Every user may ask for their own permissions.
        if kind.group != "authorization.k8s.io" and not self.allows(verb, kind.group, resource):
            raise answers.forbidden(USER, verb, resource, kind.group, *where)

    def check_quota(self, kind: Kind, manifest: Manifest, objects: Objects) -> None:
        """Reject what exceeds one of the namespace's quotas; they only count objects."""
        namespace, name = manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]
        counted = "pods" if kind is PODS else f"count/{kind.plural}"
        for quota in objects.select(QUOTAS, namespace) if namespace else ():
            limit = quota.manifest()["spec"].get("hard", {}).get(counted)
            used = len(objects.select(kind, namespace))
            if limit is not None and used >= int(limit):
                raise answers.ApiError(
                    403,
                    f'{kind.plural} "{name}" is forbidden: exceeded quota: {quota.name}, '
                    f"requested: {counted}=1, used: {counted}={used}, limited: {counted}={limit}",
                    details={"name": name, "kind": kind.plural},
                )

    def review(self, given: Manifest) -> Manifest:
        """The response to a SelfSubjectAccessReview."""
        asked = given["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
        allowed = self.allows(asked.get("verb", ""), asked.get("group", ""), resource)
        status: dict[str, Any] = {"allowed": allowed}
        if allowed:
            status["reason"] = f'RBAC: allowed by RoleBinding "aerotrain/default" of User "{USER}"'
        return {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": given["spec"],
            "status": status,
        }


def _in(wanted: str, allowed: Sequence[str]) -> bool:
    return wanted in allowed or "*" in allowed
