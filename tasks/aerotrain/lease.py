"""The lease: one chief at a time trains and writes in a job's prefix in the store.

A chief that was stopped and continues after another has taken over detects that before it publishes
anything: the current holder's token is higher than the tokens of all earlier holders. The lease is
taken, renewed and released by compare-and-swap only. It is never deleted, so tokens only grow.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

from aerotrain.contract.errors import FinalError, SpecError, SupersededError, TemporaryError
from aerotrain.contract.layout import LEASE
from aerotrain.contract.validation import Validated, read
from aerotrain.store import ChangedError, ExistsError, MissingError, Store

#: Seconds between two renewals, and seconds without a renewal after which another launch may take
#: the lease.
RENEWED_EVERY, LAPSES_AFTER = 5.0, 20.0

_LOOK_EVERY = 1.0

#: Upper bound in bytes; a lease is a few hundred bytes.
_LONGEST = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LeaseRecord(Validated):
    """The lease's content: ``holder`` is one process, ``attempt`` its launch, ``place`` its host.

    ``restarts`` is the restart count of the chief in its launch.
    """

    TITLE: ClassVar = "a lease"

    holder: str
    attempt: str
    place: str
    restarts: int
    token: int
    renewals: int = 0
    released: bool = False

    @classmethod
    def from_json(cls, text: bytes, url: str) -> Self:
        """Read a claim.

        Raises:
            FinalError: the content is not a claim.
        """
        try:
            return read(cls, json.loads(text), strict=False)
        except (ValueError, SpecError) as error:
            raise FinalError(
                f"{url} is no lease of a training ({error}); see that none trains there, and "
                "delete it"
            ) from error

    def __str__(self) -> str:
        return f"launch {self.attempt} on {self.place}"


class Lease:
    """The lease of the prefix ``store``, held by one process for its launch ``attempt``.

    Without ``take`` there is no fencing: ``put`` is the store's.
    """

    def __init__(
        self,
        store: Store,
        *,
        attempt: str,
        restarts: int,
        place: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._clock = clock
        self._pause = pause
        # Random, because two hosts may share a name, and process ids repeat.
        self._own = LeaseRecord(
            holder=uuid.uuid4().hex,
            attempt=attempt,
            place=place,
            restarts=restarts,
            token=0,
        )
        self._tag = ""

    @property
    def token(self) -> int:
        """The fencing token, above those of all earlier holders; 0 until the lease is taken."""
        return self._own.token

    def take(self, above: int = 0) -> None:
        """Take the lease, with a token above all earlier ones and above ``above``.

        If another launch holds the lease, wait until it has lapsed. That is measured by this
        process's own clock, as the time for which the lease did not change.

        Raises:
            FinalError: another launch renews the lease.
            SupersededError: the same launch has restarted this chief, which holds the lease now.
        """
        while True:
            found = self._read()
            if found is not None:
                self._wait_for(*found)
            claim, tag = found or (None, None)
            token = max(claim.token if claim else 0, above) + 1
            with suppress(ChangedError, ExistsError):  # another process was first: read again
                self._write(replace(self._own, token=token, renewals=0, released=False), tag)
                return

    def renew(self) -> None:
        """Renew the lease, which shows that this process is alive.

        Raises:
            SupersededError: another process holds the lease.
            TemporaryError: the store is unavailable; this process still holds the lease.
        """
        own = replace(self._own, renewals=self._own.renewals + 1)
        try:
            self._write(own, self._tag)
        except ChangedError:
            claim, tag = self._read() or (None, None)
            self._check_holder(claim)
            # The response of an earlier write was lost, or the lease was deleted by hand.
            with suppress(ChangedError, ExistsError):  # the next renewal checks the holder
                self._write(own, tag)

    def check(self) -> None:
        """Check in the store that this process still holds the lease and may publish.

        Raises:
            SupersededError: another process holds it.
        """
        if self.token:
            with suppress(MissingError):  # deleted by hand, and no other process has taken it
                self._check_holder(LeaseRecord.from_json(self._store.get(LEASE), self._url))

    def put(self, key: str, content: bytes) -> None:
        """Write an object, such that no earlier holder's write replaces it, nor it a later one's.

        The object's version is read before the check of the lease and replaced after it. A process
        that was stopped in between finds another version when it continues.

        Raises:
            SupersededError: another process holds the lease.
        """
        while self.token:
            tag = None
            with suppress(MissingError):
                tag = self._store.stat(key).etag
            self.check()
            with suppress(ChangedError, ExistsError):  # an earlier holder's last write
                self._store.put(key, content, if_absent=tag is None, if_match=tag)
                return
        self._store.put(key, content)

    def release(self) -> None:
        """Let another launch take the lease without waiting; if this fails, the lease lapses."""
        if self.token:
            with suppress(TemporaryError, FinalError):
                self._write(replace(self._own, released=True), self._tag)

    @contextmanager
    def renewed(self, end: Callable[[str], None]) -> Iterator[None]:
        """A scope in which a thread renews the lease; if it is lost, ``end`` gets the reason."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(RENEWED_EVERY):
                try:
                    self.renew()
                except SupersededError as error:
                    end(str(error))
                    return
                except (TemporaryError, FinalError):
                    continue  # the uploader reports problems with the store

        thread = threading.Thread(target=work, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(RENEWED_EVERY)

    def _wait_for(self, claim: LeaseRecord, tag: str) -> None:
        """Return when ``claim``, read with version ``tag``, may be replaced."""
        if claim.released:
            return
        if claim.attempt == self._own.attempt:
            if claim.restarts > self._own.restarts:
                self._check_holder(claim)
            return
        print(f"{claim} was the last to train here; waiting if it still does", flush=True)
        since = seen = self._clock()
        while seen - since < LAPSES_AFTER:
            self._pause(_LOOK_EVERY)
            now = self._read()
            if now is None or now[0].released:
                return
            if now[1] != tag:
                raise FinalError(
                    f"the store prefix {self._store.url} is in use by another live run, {now[0]}; "
                    "end that one, or give this run a store or a run id of its own"
                )
            before, seen = seen, self._clock()
            if seen - before > RENEWED_EVERY:
                since = seen  # this process or the store was stopped: the holder may have been, too

    def _check_holder(self, claim: LeaseRecord | None) -> None:
        """Raise SupersededError if ``claim`` belongs to another process."""
        if claim is not None and claim.holder != self._own.holder:
            raise SupersededError(
                f"{claim} took over {self._store.url}: its lease has token {claim.token}, and this "
                f"process had {self.token}; this process ends and leaves the training to that "
                "launch, so see its log"
            )

    @property
    def _url(self) -> str:
        return f"{self._store.url}/{LEASE}"

    def _read(self) -> tuple[LeaseRecord, str] | None:
        """The content of the lease, and the tag of that version; None if there is no lease."""
        while True:
            try:
                tag = self._store.stat(LEASE).etag
                text = self._store.get_range(LEASE, 0, _LONGEST, tag)
            except MissingError:
                return None
            except ChangedError:
                continue  # it was renewed in between
            return LeaseRecord.from_json(text, self._url), tag

    def _write(self, claim: LeaseRecord, tag: str | None) -> None:
        """Write ``claim`` if the lease has the version ``tag``; with None, if there is no lease."""
        content = json.dumps(asdict(claim)).encode()
        self._tag = self._store.put(LEASE, content, if_absent=tag is None, if_match=tag)
        self._own = claim
