"""The event trigger of new files in a prefix, for an ``AssetWatcher``.

Airflow's own triggers of S3 end with their first event, forget which files they have seen, and read
no ``file://``. This one goes on after it, and over restarts of the triggerer.

Which files were reported is one object in the store. It is written once Airflow has stored their
event, so none is lost: a watcher that ends before it does reports its files again.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from aerotrain.contract.errors import AerotrainError, FinalError, SpecError
from aerotrain.contract.layout import WATCHED, path_segment
from aerotrain.contract.preparing import HIDDEN
from aerotrain.store import MissingError, Store
from aerotrain.store.protocol import swap
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.versions import SharedStreamProducer

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import AdvanceItem

FORMAT = 1

#: Seconds for which complete files wait at most for others that still land, to be in one event.
PATIENCE = 300.0

#: The tag of each file, which changes with its content, by its key.
Tags = Mapping[str, str]


class WatchedPrefix:
    """The prefix at ``url``, as one watcher has seen it.

    With ``marker``, such as ``_SUCCESS``, the files of a folder count once it has a file of that
    name. Each method gets the stores, so that their credentials can be replaced: ``store`` has the
    record of what was reported.
    """

    def __init__(self, url: str, *, marker: str | None = None) -> None:
        self._marker = marker
        name = path_segment(f"{url} {marker or ''}")
        self._key = f"{WATCHED}/{name}.json"
        self._listed: Tags = {}
        self._reported: Tags = {}
        self._since: float | None = None  # when the first file was seen that is not reported

    def new_files(self, source: Store, store: Store, now: float) -> Tags:
        """The files of ``source`` to report, once none has changed or landed since the last call.

        Those that are complete wait up to ``PATIENCE`` for others; ``now`` is in seconds.

        Raises:
            AerotrainError: a store is unavailable, denies access, or does not exist.
        """
        before, self._listed = self._listed, {each.key: each.etag for each in source.list()}
        counted = self._counted()
        new = _without(self._reported, counted)
        if new:  # unless another watcher of this prefix has reported them
            self._reported = self._record(store)
            new = _without(self._reported, counted)
        if not new:
            self._since = None
            return {}
        self._since = now if self._since is None else self._since
        ready = {key: tag for key, tag in new.items() if before.get(key) == tag}
        if not ready or (len(ready) < len(new) and now < self._since + PATIENCE):
            return {}
        self._since = None
        return ready

    def confirm(self, store: Store, files: Tags) -> None:
        """Record that these files were reported, and forget those that were deleted.

        Raises:
            AerotrainError: the store is unavailable, or denies access.
        """

        def with_files(content: bytes | None) -> bytes:
            known = self._read(content, store)
            kept = {key: tag for key, tag in known.items() if key in self._listed}
            self._reported = {**kept, **files}
            return json.dumps({"format": FORMAT, "files": self._reported}).encode()

        swap(store, self._key, with_files)

    def _record(self, store: Store) -> Tags:
        try:
            return self._read(store.get(self._key), store)
        except MissingError:
            return {}

    def _read(self, content: bytes | None, store: Store) -> Tags:
        if content is None:
            return {}
        try:
            data: Any = json.loads(content)
            if data["format"] != FORMAT:
                raise ValueError(f"version {data['format']} of the format, this is {FORMAT}")
            files: Tags = data["files"]
        except (ValueError, TypeError, KeyError) as error:
            raise FinalError(
                f"{store.url}/{self._key} does not say which files were reported ({error!r}): "
                "delete it, and all files of its prefix are reported again"
            ) from error
        return files

    def _counted(self) -> Tags:
        """The files that are data, of folders that have their marker."""
        complete = {_folder(key) for key in self._listed if key.rpartition("/")[2] == self._marker}
        return {
            key: tag
            for key, tag in self._listed.items()
            if not HIDDEN.search(key)
            and key.rpartition("/")[2]  # not the empty object that stands for a folder in S3
            and (self._marker is None or _folder(key) in complete)
        }


def _without(reported: Tags, files: Tags) -> Tags:
    return {key: tag for key, tag in files.items() if reported.get(key) != tag}


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


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
    has the ``url``, the ``count`` of files and all their ``folders``, relative to the URL, which
    ``FoldersOfRun`` reads. Watchers of one prefix share what was reported, so they must have equal
    arguments.

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

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The events, for a triggerer before Airflow 3.3, which shares no stream.

        It does not say when it has stored an event: files are confirmed when it asks for the next.
        """
        producer = _Producer(self)
        async for payload, files in producer.open_stream():
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
            await producer.confirm(files)


_Result = TypeVar("_Result")


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

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], Tags]]:
        url = self._trigger.url
        while True:
            if not self._is_reporting and (files := await self._tried(self._new_files)):
                self._is_reporting = True
                folders = sorted({_folder(key) for key in files})
                yield {"url": url, "count": len(files), "folders": folders}, files
            await asyncio.sleep(self._trigger.poll)

    async def advance(self, batch: "Sequence[AdvanceItem]") -> None:
        for item in batch:
            if item.outcome.is_clean:  # otherwise they are reported again
                await self.confirm(item.broker_payload)
            self._is_reporting = False

    async def confirm(self, files: Tags) -> None:
        """Record that these files were reported, and report others."""
        confirm = partial(self._confirmed, files)
        while not await self._tried(confirm):
            await asyncio.sleep(self._trigger.poll)
        self._is_reporting = False

    def _new_files(self, source: Store, store: Store) -> Tags:
        return self._prefix.new_files(source, store, time.time())

    def _confirmed(self, files: Tags, _source: Store, store: Store) -> bool:
        self._prefix.confirm(store, files)
        return True

    async def _tried(self, request: Callable[[Store, Store], _Result]) -> _Result | None:
        """The result of a request to the stores of the prefix and of all pipelines, in a thread.

        None if a store does not serve it now.
        """
        try:
            result = await asyncio.to_thread(lambda: request(*self._opened()))
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

    def _opened(self) -> tuple[Store, Store]:
        if self._stores is None:
            settings = Settings.read()
            source = store_of(self._trigger.url, settings)
            self._stores = (source, store_of(settings.store, settings))
        return self._stores
