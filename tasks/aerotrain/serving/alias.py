"""The alias ``serving`` of a pipeline: which of its versions is served, since when, and by whom.

It is one object, which is changed by compare-and-swap: of two changes at once, the second one is
decided again on what the first one wrote. The history is kept. A pipeline without the object serves
its newest version.

A version that is promoted while retention removes it is either served or removed, never both. Each
side first writes what it is about to do with the version, and then looks for the other's object: so
at least one of them finds the other, and gives way.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import ALIAS, PROMOTIONS, REMOVALS, VERSIONS
from aerotrain.serving.versions import complete_versions
from aerotrain.store import MANIFEST, MissingError, Store, open_store
from aerotrain.store.protocol import read_version, swap

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class AliasChange:
    """One change of the alias: to ``version`` from ``previous``, which is None for the first.

    ``by`` is a person or a run, ``at`` an ISO 8601 time, ``reason`` what they say, and ``metrics``
    those with which the model was accepted. ``until`` is the ISO 8601 time until which its data
    are, if the run says one.
    """

    action: str
    version: int
    previous: int | None
    at: str
    by: str
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    until: str | None = None


class OlderError(FinalError):
    """A version is older than the served one."""


@dataclass(frozen=True, kw_only=True)
class Alias:
    """The version that is served, and all changes, the latest last."""

    version: int
    history: tuple[AliasChange, ...]

    @property
    def until(self) -> str:
        """The time until which the data of the served version are.

        Where no run says one, it is that of the latest promotion: the data are not newer.
        """
        changes = [each for each in reversed(self.history) if each.version == self.version]
        known = (each.until for each in changes if each.until)
        return next(known, changes[0].at)

    def before(self, version: int) -> int | None:
        """The version that was served before ``version`` was last promoted, or None."""
        promoted = [
            each for each in self.history if each.action == "promote" and each.version == version
        ]
        return promoted[-1].previous if promoted else None

    def rollbacks(self, count: int) -> list[int]:
        """The versions that the next ``count`` rollbacks would serve."""
        found: list[int] = []
        version = self.before(self.version)
        while version is not None and len(found) < count:
            found.append(version)
            version = self.before(version)
        return found

    def to_json(self) -> str:
        history = [asdict(each) for each in self.history]
        document = {"format": FORMAT, "version": self.version, "history": history}
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, url: str) -> Self:
        """Read what ``to_json`` wrote to ``url``.

        Raises:
            FinalError: it is no alias, or of another version of the format.
        """
        try:
            data: Any = json.loads(text)
            if data["format"] != FORMAT:
                raise FinalError(
                    f"{url} is in version {data['format']} of its format, this is version "
                    f"{FORMAT}: use the aerotrain that wrote it"
                )
            history = tuple(AliasChange(**each) for each in data["history"])
            return cls(version=int(data["version"]), history=history)
        except (ValueError, TypeError, KeyError) as error:
            raise FinalError(
                f"{url} is no alias of a version ({error!r}): delete it, and promote a version"
            ) from error


def alias_of(store: Store) -> Alias | None:
    """The alias in a folder of versions; None if nothing was promoted yet."""
    return _parsed(store, read_version(store, ALIAS)[0])


def served_number(store: Store) -> int | None:
    """The version of the folder ``store`` that is served, or None.

    It is the one that was promoted, or the newest one if none was.
    """
    alias = alias_of(store)
    return max(complete_versions(store), default=None) if alias is None else alias.version


def served_version(pipeline: str) -> str | None:
    """The URL of the version that the pipeline with this store serves, or None."""
    store = open_store(pipeline).child(VERSIONS)
    version = served_number(store)
    return None if version is None else f"{store.url}/{version}"


def tag_of(store: Store) -> str | None:
    """What changes with the alias, by one request; None if nothing was promoted yet."""
    try:
        return store.stat(ALIAS).etag
    except MissingError:
        return None


def promote(
    store: Store,
    version: int,
    *,
    by: str,
    reason: str = "",
    metrics: dict[str, float] | None = None,
    until: datetime | None = None,
    older: bool = False,
) -> Alias:
    """Serve ``version`` of the folder of versions ``store``; nothing changes if it is served.

    ``until`` is the time, with a time zone, until which the data of its run are.

    Raises:
        OlderError: it is older than the served version, by the times until which their data are,
            or by their numbers where these are equal or unknown, and ``older`` does not allow that.
        FinalError: the version is not complete, or is just removed by retention.
    """

    def chosen(alias: Alias | None) -> int | None:
        if alias is None:
            return version
        if alias.version == version:
            return None
        if not older:
            _check_order(alias, version, until)
        return version

    end = None if until is None else until.isoformat()
    about = {"by": by, "reason": reason, "metrics": metrics or {}, "until": end}
    return _change(store, "promote", chosen, about)


def _check_order(alias: Alias, version: int, until: datetime | None) -> None:
    served = datetime.fromisoformat(alias.until)
    if until is not None and until != served:
        if until < served:
            raise OlderError(
                f"version {version} is of data until {until.isoformat()}, and version "
                f"{alias.version}, which is served, until {alias.until}"
            )
    elif version < alias.version:
        raise OlderError(
            f"version {version} is older than version {alias.version}, which is served: roll "
            "back, or allow an older version"
        )


def rollback(store: Store, *, by: str, reason: str = "") -> Alias:
    """Serve the version that was served before the present one was promoted.

    Raises:
        FinalError: there is none, or it was deleted or is just removed by retention.
    """

    def chosen(alias: Alias | None) -> int:
        if alias is None:
            raise FinalError(f"{store.url} serves its newest version: none was promoted yet")
        before = alias.before(alias.version)
        if before is None:
            raise FinalError(
                f"version {alias.version} of {store.url} is the first that was promoted: there is "
                "none to roll back to"
            )
        return before

    return _change(store, "rollback", chosen, {"by": by, "reason": reason})


def _announce(store: Store, version: int) -> None:
    """Announce that the version is about to be served, so that retention keeps it.

    Raises:
        FinalError: it is not complete, or retention has begun to remove it.
    """
    _check_complete(store, version)
    store.put(f"{PROMOTIONS}/{version}.json", b"{}\n")
    if store.exists(f"{REMOVALS}/{version}.json"):
        raise FinalError(
            f"version {version} of {store.url} is being removed, because it is older than "
            "retention keeps: promote another one"
        )
    _check_complete(store, version)  # after the mark: a removal may just have ended


def _check_complete(store: Store, version: int) -> None:
    if not store.exists(f"{version}/{MANIFEST}"):
        there = ", ".join(map(str, complete_versions(store)))
        instead = f"it has {there}" if there else f"is there one below {store.url}/{VERSIONS}?"
        raise FinalError(f"{store.url} has no complete version {version}; {instead}")


def _change(
    store: Store,
    action: str,
    chosen: Callable[[Alias | None], int | None],
    about: Mapping[str, Any],
) -> Alias:
    """Serve the version that is ``chosen`` by the alias as it is, unless that is None."""
    result: Alias | None = None

    def swapped(content: bytes | None) -> bytes | None:
        nonlocal result
        result = _parsed(store, content)
        version = chosen(result)
        if version is None:
            return None
        _announce(store, version)
        previous, history = (None, ()) if result is None else (result.version, result.history)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        change = AliasChange(action=action, version=version, previous=previous, at=at, **about)
        result = Alias(version=version, history=(*history, change))
        return result.to_json().encode()

    swap(store, ALIAS, swapped)
    assert result is not None  # only an alias that exists is left as it is
    return result


def _parsed(store: Store, content: bytes | None) -> Alias | None:
    return None if content is None else Alias.from_json(content, f"{store.url}/{ALIAS}")
