"""The event trigger of new files in a prefix, for an ``AssetWatcher``.

Airflow's own triggers of S3 end with their first event, forget which files they have seen, and read
no ``file://``. This one goes on after it, and over restarts of the triggerer.

Which files were reported is one object, changed by compare-and-swap. A watcher claims new files
before it reports them, and confirms them once Airflow has stored the event. No file is lost if a
watcher ends in between: its claim lapses, and another one reports the files. Two watchers do not
report a file twice, because one of them gets the claim.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, Self, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from aerotrain.contract.errors import AerotrainError, FinalError, SpecError
from aerotrain.contract.layout import WATCHED, path_segment
from aerotrain.contract.preparing import HIDDEN
from aerotrain.store import Store
from aerotrain.store.protocol import swap
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.settings import Settings

FORMAT = 1


#: Seconds after which the files of a watcher that has ended are reported by another one. Airflow
#: stores an event within about two seconds.
CLAIM_SECONDS = 60.0

#: Seconds for which complete files wait at most for others that still land, to be in one event.
PATIENCE = 300.0

#: The most folders of one event; files of further ones are in the next event.
MOST_FOLDERS = 1000

#: The most files that an event names.
MOST_NAMES = 100


@dataclass(frozen=True, kw_only=True)
class ReportClaim:
    """The tags of files that a watcher reports, by key; until a time in seconds since 1970."""

    name: str
    until: float
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The tag of each reported file by key, and the files that are being reported."""

    files: Mapping[str, str] = field(default_factory=dict)
    claim: ReportClaim | None = None

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, content: bytes | None, url: str) -> Self:
        """Read what ``to_json`` wrote to ``url``; nothing was reported if there is no content.

        Raises:
            FinalError: it is not such an object, or of another version of the format.
        """
        if content is None:
            return cls()
        try:
            data: Any = json.loads(content)
            if data["format"] != FORMAT:
                raise ValueError(f"version {data['format']} of the format, this is {FORMAT}")
            claim = data["claim"]
            return cls(files=data["files"], claim=None if claim is None else ReportClaim(**claim))
        except (ValueError, TypeError, KeyError) as error:
            raise FinalError(
                f"{url} does not say which files were reported ({error!r}): delete it, and all "
                "files of its prefix are reported again"
            ) from error


@dataclass(frozen=True, kw_only=True)
class NewFilesBatch:
    """New files to report in one event: their tags by key, and all keys of the prefix."""

    claim: str
    files: Mapping[str, str]
    present: frozenset[str]

    def payload(self, url: str) -> dict[str, Any]:
        """What the event says: all folders, and the names of the first files."""
        return {
            "url": url,
            "count": len(self.files),
            "files": sorted(self.files)[:MOST_NAMES],
            "folders": sorted({_folder(key) for key in self.files}),
        }


class WatchedPrefix:
    """The prefix at ``url``, as one watcher has seen it.

    With ``marker``, such as ``_SUCCESS``, the files of a folder count once it has a file of that
    name. Each method gets the stores, so that their credentials can be replaced.
    """

    def __init__(self, url: str, *, marker: str | None = None) -> None:
        self._marker = marker
        name = path_segment(f"{url} {marker or ''}")
        self._key = f"{WATCHED}/{name}.json"
        self._before: Mapping[str, str] = {}
        self._reported = Reported()
        self._since: float | None = None  # when the first file was seen that is not reported

    def claimed(self, source: Store, store: Store, now: float) -> NewFilesBatch | None:
        """Claim the new files of ``source``, once none has changed or landed since the last call.

        Those that are complete wait up to ``PATIENCE`` for others. What was reported is in
        ``store``. Returns None if there is nothing to report; ``now`` is in seconds since 1970.

        Raises:
            AerotrainError: a store is unavailable, denies access, or does not exist.
        """
        listed = {each.key: each.etag for each in source.list()}
        counted = self._counted(listed)
        ready = {key: tag for key, tag in counted.items() if self._before.get(key) == tag}
        self._before = listed
        new = _new(counted, self._reported)
        if not new:
            self._since = None
            return None
        self._since = now if self._since is None else self._since
        if new.keys() - ready.keys() and now < self._since + PATIENCE:
            return None
        own: ReportClaim | None = None

        def swapped(reported: Reported) -> Reported | None:
            nonlocal own
            own = None
            files = _first_folders(_new(ready, reported))
            if not files or (reported.claim is not None and now < reported.claim.until):
                return None
            own = ReportClaim(name=uuid.uuid4().hex, until=now + CLAIM_SECONDS, files=files)
            return replace(reported, claim=own)

        self._swap(store, swapped)
        if own is None:
            return None
        self._since = None
        return NewFilesBatch(claim=own.name, files=own.files, present=frozenset(listed))

    def confirm(self, store: Store, batch: NewFilesBatch) -> None:
        """Keep that these files were reported, and forget those that were deleted.

        Raises:
            AerotrainError: the store is unavailable, or denies access.
        """

        def swapped(reported: Reported) -> Reported:
            kept = {key: tag for key, tag in reported.files.items() if key in batch.present}
            claim = reported.claim
            if claim is not None and claim.name == batch.claim:
                claim = None
            return Reported(files={**kept, **batch.files}, claim=claim)

        self._swap(store, swapped)

    def _counted(self, listed: Mapping[str, str]) -> dict[str, str]:
        """The files that are data, of folders that have their marker."""
        complete = {_folder(key) for key in listed if key.rpartition("/")[2] == self._marker}
        return {
            key: tag
            for key, tag in listed.items()
            if not HIDDEN.search(key)
            and key.rpartition("/")[2]  # not the empty object that stands for a folder in S3
            and (self._marker is None or _folder(key) in complete)
        }

    def _swap(self, store: Store, changed: Callable[[Reported], Reported | None]) -> None:
        """Change what was reported, and remember it."""

        def swapped(content: bytes | None) -> bytes | None:
            before = Reported.from_json(content, f"{store.url}/{self._key}")
            after = changed(before)
            self._reported = before if after is None else after
            return None if after is None else after.to_json()

        swap(store, self._key, swapped)


def _new(ready: Mapping[str, str], reported: Reported) -> dict[str, str]:
    return {key: tag for key, tag in ready.items() if reported.files.get(key) != tag}


def _first_folders(files: Mapping[str, str]) -> dict[str, str]:
    """The files of as many folders as one event may have."""
    folders = set(sorted({_folder(key) for key in files})[:MOST_FOLDERS])
    return {key: tag for key, tag in files.items() if _folder(key) in folders}


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


_Result = TypeVar("_Result")


class NewFiles(BaseEventTrigger):
    """Fire once for new files in a prefix, and for files of which the content changed.

    Args:
        url: the prefix, a folder in ``s3://`` or ``file://``. It need not exist yet. The triggerer
            reads it with the credential of the store of all pipelines.
        marker: the name of a file, such as ``_SUCCESS``, that a folder has once it is complete.
            Files of other folders wait.
        poll: seconds between two listings. Files are reported once two listings have the same new
            files; where files land all the time, after five minutes.

    Files whose name or folder begins with ``_`` or a dot do not count, nor do deletions. An event
    has the ``url``, the ``count`` of files, the first 100 ``files`` and all ``folders``, relative
    to the URL; ``FoldersOfRun`` reads the folders. Watchers of one prefix share what was reported,
    so they must have equal arguments.

    Raises:
        SpecError: the URL is not that of a store, or another argument is not accepted.
    """

    def __init__(self, url: str, *, marker: str | None = None, poll: float = 10.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not url.startswith(("s3://", "file:///")):
            raise SpecError(f"{url!r} names no prefix; write s3://bucket/prefix or file:///folder")
        if poll <= 0:
            raise SpecError(f"poll is {poll}; write a number of seconds above 0")
        self.url = url.rstrip("/")
        self.marker = marker
        self.poll = poll

    def serialize(self) -> tuple[str, dict[str, Any]]:
        given = {"url": self.url, "marker": self.marker, "poll": self.poll}
        return f"{type(self).__module__}.{type(self).__qualname__}", given

    def shared_stream_key(self) -> Hashable:
        return (type(self).__qualname__, self.url, self.marker)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return _Producer(cls(**kwargs))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for payload in shared_stream:
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    def run(self) -> NoReturn:
        """Not called: the triggerer reads the shared stream."""
        raise NotImplementedError("a triggerer of Airflow 3.3 or later reads the shared stream")


class _Producer(SharedStreamProducer):
    """Polls the prefix, and confirms the files of each event that Airflow has stored.

    Requests to a store run in threads. While they fail, it waits and tries again.
    """

    def __init__(self, trigger: NewFiles) -> None:
        self._trigger = trigger
        self._prefix = WatchedPrefix(trigger.url, marker=trigger.marker)
        self._stores: tuple[Store, Store] | None = None
        self._is_reporting = False
        self._error = ""

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], NewFilesBatch]]:
        while True:
            if not self._is_reporting and (batch := await self._tried(self._claimed)) is not None:
                self._is_reporting = True
                yield batch.payload(self._trigger.url), batch
            await asyncio.sleep(self._trigger.poll)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            if item.outcome.is_clean:  # otherwise the claim lapses, and they are reported again
                confirm = partial(self._confirmed, item.broker_payload)
                while not await self._tried(confirm):
                    await asyncio.sleep(self._trigger.poll)
            self._is_reporting = False

    def _claimed(self) -> NewFilesBatch | None:
        return self._prefix.claimed(*self._opened(), time.time())

    def _confirmed(self, batch: NewFilesBatch) -> bool:
        _, store = self._opened()
        self._prefix.confirm(store, batch)
        return True

    def _opened(self) -> tuple[Store, Store]:
        """The store of the prefix, and that of all pipelines, in which the reported files are."""
        if self._stores is None:
            settings = Settings.read()
            source = store_of(self._trigger.url, settings)
            self._stores = (source, store_of(settings.store, settings))
        return self._stores

    async def _tried(self, request: Callable[[], _Result]) -> _Result | None:
        """The result of a request in a thread; None if a store does not serve it now."""
        try:
            result = await asyncio.to_thread(request)
        except AerotrainError as error:
            self._stores = None  # the next request has a fresh credential
            if str(error) != self._error:
                self._trigger.log.warning("new files cannot be seen now: %s", error)
            self._error = str(error)
            return None
        if self._error:
            self._trigger.log.info("new files of %s are seen again", self._trigger.url)
        self._error = ""
        return result
