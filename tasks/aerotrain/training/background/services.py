"""Background services of a training: uploader, watchdog, and the writers of events and status."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aerotrain.contract.environment import Cluster
from aerotrain.contract.errors import ExitCode
from aerotrain.contract.event_log import EventType
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.training import TrainArguments
from aerotrain.lease import Lease
from aerotrain.replica import Replica, began
from aerotrain.store import Store, open_store
from aerotrain.training.background.uploader import Uploader
from aerotrain.training.background.watchdog import Watchdog
from aerotrain.training.background.writers import EventWriter, StatusWriter

#: Seconds added to the progress timeout under ps, so that the launcher ends an unresponsive worker
#: first.
_SERVED_LATER = 3.0

#: Seconds that an upload may still take when the replica ends itself.
_LAST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class BackgroundServices:
    """The services of one replica; everything for the ``store`` of its job goes through them.

    ``lease`` is held by the chief alone.
    """

    store: Store
    lease: Lease
    uploader: Uploader
    event_writer: EventWriter
    status_writer: StatusWriter
    #: Called when the training fails, before the last uploads.
    at_failure: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    @contextmanager
    def of(
        cls,
        replica: Replica,
        arguments: TrainArguments,
        highest_token: Callable[[Store], int],
    ) -> Iterator["BackgroundServices"]:
        """Start the services of ``replica``. The chief takes the lease first.

        Its token is above the ``highest_token`` of what is in the store.

        At the end, the uploader has a few seconds for what still waits.

        Raises:
            FinalError: another run's chief trains in the job's prefix in the store.
        """
        store, lease = open_store(replica.job.prefix), replica.lease
        imported = time.time() - began()
        if replica.is_chief:
            lease.take(above=highest_token(store))
        with lease.renewed(_superseded(replica)) if replica.is_chief else nullcontext():
            uploader = Uploader(arguments.store_timeout)
            event_writer = EventWriter(
                store,
                uploader,
                lease.put,
                active=replica.is_chief,
                restarts=replica.restarts,
            )
            event_writer.note(EventType.START, at=began())
            event_writer.note(EventType.IMPORT, at=began() + imported, seconds=imported)
            with StatusWriter.of(replica) as status_writer:
                services = cls(
                    store=store,
                    lease=lease,
                    uploader=uploader,
                    event_writer=event_writer,
                    status_writer=status_writer,
                )
                try:
                    yield services
                except BaseException:
                    for report in services.at_failure:
                        with suppress(Exception):  # the error itself says more
                            report()
                    raise
                finally:
                    uploader.wait(_LAST_SECONDS)

    def deliver(self, key: str, content: bytes) -> None:
        """Write an object, and return when it and all earlier uploads are in the store.

        Raises:
            SupersededError: another chief has taken over.
            TemporaryError: the store has been unavailable for too long.
        """
        self.uploader.send(key, lambda: self.lease.put(key, content))
        self.uploader.wait(math.inf)
        self.uploader.check()

    def upload(self, folder: str, files: Sequence[Path]) -> None:
        """Upload ``files`` to ``folder`` in the background, in their state at that time."""

        def upload() -> None:
            self.lease.check()
            for file in files:
                self.store.upload(file, f"{folder}/{file.name}")

        self.uploader.send(folder, upload)

    def watchdog(self, replica: Replica, excused: Callable[[], bool]) -> Watchdog:
        """Start the watchdog of ``replica``; it pauses while ``excused`` is true."""

        def end(because: str, unresponsive: Sequence[str]) -> None:
            replica.write_termination_message(because, unresponsive)
            self.uploader.wait(_LAST_SECONDS)
            os._exit(ExitCode.FROZEN)

        deadlines, served = replica.job.deadlines, bool(replica.job.rules.ps)
        watchdog = Watchdog(
            progress_timeout=deadlines.progress_timeout + served * _SERVED_LATER,
            start_timeout=deadlines.start,
            peers=peers_of(replica.cluster, replica.name),
            end=end,
            excused=excused,
        )
        watchdog.start()
        return watchdog


def _superseded(replica: Replica) -> Callable[[str], None]:
    """What ends this process at once; its other threads must not continue."""

    def end(because: str) -> None:
        replica.write_termination_message(because)
        os._exit(ExitCode.SUPERSEDED)

    return end


def peers_of(cluster: Cluster, own: ReplicaName) -> dict[str, str]:
    """The addresses of all replicas of ``cluster`` but ``own``, by name."""
    names = {
        ReplicaName(Role(role), index): address
        for role, addresses in cluster.items()
        for index, address in enumerate(addresses)
    }
    return {str(name): address for name, address in names.items() if name != own}
