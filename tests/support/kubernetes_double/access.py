"""Authentication, permissions and quotas; by default, every user may do everything."""

from typing import Any

from support.kubernetes_double import answers
from support.kubernetes_double.objects import PODS, QUOTAS, Kind, Manifest, Objects, Selection

USER = "system:serviceaccount:default:aerotrain"


class Access:
    """The bearer token, verbs that were revoked, and quotas."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.denied: set[tuple[str, str]] = set()

    def check(
        self, authorization: str, verb: str, kind: Kind, resource: str, namespace: str
    ) -> None:
        """Reject an invalid token, and what the user may not do.

        ``resource`` includes the subresource, as in ``pods/log``.
        """
        if self.token and authorization != f"Bearer {self.token}":
            raise answers.ApiError(401, "Unauthorized")
        if (verb, resource) in self.denied:
            raise answers.forbidden(USER, verb, resource, kind.group, namespace)

    def review(self, given: Manifest) -> Manifest:
        """The response to a SelfSubjectAccessReview."""
        asked = given["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
        status: dict[str, Any] = {"allowed": (asked.get("verb"), resource) not in self.denied}
        return {**given, "metadata": {}, "status": status}


def check_quota(kind: Kind, manifest: Manifest, objects: Objects) -> None:
    """Reject what exceeds one of the namespace's quotas; they only count objects."""
    namespace, name = manifest["metadata"].get("namespace"), manifest["metadata"]["name"]
    if not namespace:
        return
    counted = "pods" if kind is PODS else f"count/{kind.plural}"
    for quota in objects.select(Selection(QUOTAS, namespace)):
        limit = quota.manifest()["spec"].get("hard", {}).get(counted)
        used = len(objects.select(Selection(kind, namespace)))
        if limit is not None and used >= int(limit):
            raise answers.ApiError(
                403,
                f'{kind.plural} "{name}" is forbidden: exceeded quota: {quota.name}, '
                f"requested: {counted}=1, used: {counted}={used}, limited: {counted}={limit}",
                details={"name": name, "kind": kind.plural},
            )
