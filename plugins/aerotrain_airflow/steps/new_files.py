"""The event trigger of new files in a prefix, for an ``AssetWatcher``.

Airflow's own triggers of S3 end with their first event, forget which files they have seen, and read
no ``file://``. This one goes on after it, and over restarts of the triggerer.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from aerotrain.contract.errors import AerotrainError, SpecError
from aerotrain.store import Store
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.steps.watched import NewFilesBatch, WatchedPrefix

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
