"""The lease: one chief at a time trains in a job's place in the store, and no other writes there.

A chief that was stopped, and comes back when another has taken over, finds that out before it
publishes anything: the holder's token is higher than that of all holders before it. The lease is
taken, renewed and released by compare-and-swap alone, and never deleted, so that tokens only grow.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Self

from aerotrain.contract.errors import FinalError, SupersededError, TemporaryError
from aerotrain.store import ChangedError, ExistsError, MissingError, Store

KEY = "lease.json"

#: Seconds between two renewals, and without one after which another launch may take the lease.
RENEWED_EVERY, LAPSES_AFTER = 5.0, 20.0

_LOOK_EVERY = 1.0

#: A lease is a few hundred bytes.
_LONGEST = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the lease says. ``holder`` is one process, ``attempt`` its launch, ``place`` its host.

    ``generation`` counts how often the chief came back in its launch.
    """

    holder: str
    attempt: str
    place: str
    generation: int
    token: int
    renewals: int = 0
    released: bool = False

    @classmethod
    def from_json(cls, text: bytes, url: str) -> Self:
        """Read a claim; one of a version before there were tokens has token 0.

        Raises:
            FinalError: it is none.
        """
        try:
            data = {"holder": "", "generation": 0, "token": 0, **json.loads(text)}
            claim = cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})
            if not isinstance(claim.token, int) or not isinstance(claim.generation, int):
                raise TypeError("a token and a generation are whole numbers")
        except (ValueError, TypeError) as error:
            raise FinalError(
                f"{url} is no lease of a training ({error}); see that none trains there, and "
                "delete it"
            ) from error
        return claim

    def __str__(self) -> str:
        return f"launch {self.attempt} on {self.place}"


class Lease:
    """The lease of the job's place ``store``, as one process takes it for its launch ``attempt``.

    One that was never taken fences nothing: its ``put`` is the store's.
    """

    def __init__(
        self,
        store: Store,
        *,
        attempt: str,
        generation: int,
        place: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._clock = clock
        self._pause = pause
        # Drawn, because two hosts may share a name, and process ids repeat.
        self._own = Claim(
            holder=uuid.uuid4().hex,
            attempt=attempt,
            place=place,
            generation=generation,
            token=0,
        )
        self._tag = ""

    @property
    def token(self) -> int:
        """The fencing token: higher than that of all holders before; 0 while it is not taken."""
        return self._own.token

    def take(self, above: int = 0) -> None:
        """Hold the lease, with a token above all earlier ones, and above ``above``.

        Another launch's is waited for until it has lapsed. That is measured by this process's
        clock alone, as the time for which the lease was seen not to change.

        Raises:
            FinalError: another launch renews its own.
            SupersededError: the same launch has started this chief again, and that one has it.
        """
        while True:
            found = self._read()
            if found is not None:
                self._wait_for(*found)
            claim, tag = found or (None, None)
            token = max(claim.token if claim else 0, above) + 1
            with suppress(ChangedError, ExistsError):  # then another was first: look again
                self._write(replace(self._own, token=token, renewals=0, released=False), tag)
                return

    def renew(self) -> None:
        """Say that this process lives.

        Raises:
            SupersededError: another process holds the lease.
            TemporaryError: the store is away; the lease is still this process's.
        """
        own = replace(self._own, renewals=self._own.renewals + 1)
        try:
            self._write(own, self._tag)
        except ChangedError:
            claim, tag = self._read() or (None, None)
            self._check(claim)
            # An answer was lost, or somebody has deleted it.
            with suppress(ChangedError, ExistsError):  # the next renewal sees whose it is
                self._write(own, tag)

    def look(self) -> None:
        """Return if this process may publish: the store says that it still holds the lease.

        Raises:
            SupersededError: another process holds it.
        """
        if self.token:
            with suppress(MissingError):  # somebody has deleted it, and no other has taken it
                self._check(Claim.from_json(self._store.get(KEY), self._url))

    def put(self, key: str, content: bytes) -> None:
        """Write an object that no earlier holder may overwrite, nor any later one's be lost.

        What is read before the look and replaced after it is one version: a process that stops
        in between finds another one when it goes on.

        Raises:
            SupersededError: another process holds the lease.
        """
        while self.token:
            tag = None
            with suppress(MissingError):
                tag = self._store.stat(key).etag
            self.look()
            with suppress(ChangedError, ExistsError):  # an earlier holder's last write
                self._store.put(key, content, if_absent=tag is None, if_match=tag)
                return
        self._store.put(key, content)

    def release(self) -> None:
        """Let another launch take the lease without waiting; what fails here lapses by itself."""
        if self.token:
            with suppress(TemporaryError, FinalError):
                self._write(replace(self._own, released=True), self._tag)

    @contextmanager
    def renewed(self, end: Callable[[str], None]) -> Iterator[None]:
        """A scope in which a thread renews the lease, and calls ``end`` with why if it is lost."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(RENEWED_EVERY):
                try:
                    self.renew()
                except SupersededError as error:
                    end(str(error))
                    return
                except (TemporaryError, FinalError):
                    continue  # the uploader reports what is wrong with the store

        thread = threading.Thread(target=work, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(RENEWED_EVERY)

    def _wait_for(self, claim: Claim, tag: str) -> None:
        """Return when ``claim``, of that ``tag``, may be replaced."""
        if claim.released:
            return
        if claim.attempt == self._own.attempt:
            if claim.generation > self._own.generation:
                self._check(claim)
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
                since = seen  # this process stood still, or the store: so may the holder have

    def _check(self, claim: Claim | None) -> None:
        """Raise SupersededError if the lease says ``claim``, and that is another's."""
        if claim is not None and claim.holder != self._own.holder:
            raise SupersededError(
                f"{claim} took over {self._store.url}: its lease has token {claim.token}, and this "
                f"process had {self.token}; this process ends and leaves the training to that "
                "launch, so see its log"
            )

    @property
    def _url(self) -> str:
        return f"{self._store.url}/{KEY}"

    def _read(self) -> tuple[Claim, str] | None:
        """What the lease says, and the tag of that version."""
        while True:
            try:
                tag = self._store.stat(KEY).etag
                text = self._store.get_range(KEY, 0, _LONGEST, tag)
            except MissingError:
                return None
            except ChangedError:
                continue  # it was renewed in between
            return Claim.from_json(text, self._url), tag

    def _write(self, claim: Claim, tag: str | None) -> None:
        """Make the lease ``claim`` where it is still the version of that tag, or is not there."""
        content = json.dumps(asdict(claim)).encode()
        self._tag = self._store.put(KEY, content, if_absent=tag is None, if_match=tag)
        self._own = claim
