"""Who attends a training: the courier, the chronicle, and the watchdog."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import ReplicaName, Role
from aerotrain.contract.ledger import What
from aerotrain.contract.steps import TrainArguments
from aerotrain.lease import Lease
from aerotrain.replica import BEGAN, Replica, last_words
from aerotrain.store import Store, open_store
from aerotrain.training.attending.chronicle import Chronicle, NoChronicle
from aerotrain.training.attending.courier import Courier
from aerotrain.training.attending.watchdog import Watchdog
from aerotrain.training.checkpoints.retention import highest_token

#: Seconds more that workers under ps have, since whoever launched a frozen one ends it first.
_SERVED_LATER = 3.0

#: Seconds that a checkpoint on its way may take to the store when the replica ends itself.
_LAST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Attendants:
    """Those of one replica: what goes to the ``store`` of its job goes by them.

    ``lease`` is held by the chief alone.
    """

    store: Store
    lease: Lease
    courier: Courier
    chronicle: Chronicle
    #: The addresses of the other replicas of its cluster, by their names.
    peers: Mapping[str, str]

    @classmethod
    @contextmanager
    def of(cls, replica: Replica, arguments: TrainArguments) -> Iterator["Attendants"]:
        """Attend ``replica``, whose process began some seconds ago; the chief has the lease then.

        At its end, the courier has had a moment for what it still has.

        Raises:
            FinalError: another run's chief trains in the job's place in the store.
        """
        store, lease = open_store(replica.job.prefix), replica.lease
        imported = time.time() - BEGAN
        if replica.is_chief:
            lease.take(above=highest_token(store))
        with lease.renewed(_superseded) if replica.is_chief else nullcontext():
            courier = Courier(arguments.store_seconds)
            kind = Chronicle if replica.is_chief else NoChronicle
            chronicle = kind(store, courier, lease.put, generation=replica.generation)
            chronicle.note(What.START, at=BEGAN)
            chronicle.note(What.IMPORT, at=BEGAN + imported, seconds=imported)
            peers = peers_of(os.environ.get("AEROTRAIN_CLUSTER", "{}"), str(replica.name))
            try:
                yield cls(
                    store=store, lease=lease, courier=courier, chronicle=chronicle, peers=peers
                )
            finally:
                courier.wait(_LAST_SECONDS)

    def deliver(self, key: str, content: bytes) -> None:
        """Write an object, and return when it and all before it is in the store.

        Raises:
            SupersededError: another chief has taken over.
            TemporaryError: the store has been away for too long.
        """
        self.courier.send(key, lambda: self.lease.put(key, content))
        self.courier.wait(math.inf)
        self.courier.check()

    def watchdog(self, replica: Replica, excused: Callable[[], bool]) -> Watchdog:
        """The watchdog of ``replica``, at work whenever it is not ``excused``."""

        def end(because: str) -> None:
            last_words(because)
            self.courier.wait(_LAST_SECONDS)
            os._exit(ExitCode.FROZEN)

        deadlines, served = replica.job.deadlines, bool(replica.job.rules.ps)
        watchdog = Watchdog(
            patience=deadlines.patience + served * _SERVED_LATER,
            first=deadlines.start,
            peers=self.peers,
            end=end,
            excused=excused,
        )
        watchdog.start()
        return watchdog


def _superseded(because: str) -> None:
    """End this process at once: whatever its threads still do is not wanted any more."""
    last_words(because)
    os._exit(ExitCode.SUPERSEDED)


def peers_of(cluster: str, own: str) -> dict[str, str]:
    """The addresses in a cluster, as JSON by role, by the names of replicas but ``own``."""
    peers: dict[str, str] = {}
    for role, addresses in json.loads(cluster).items():
        for index, address in enumerate(addresses):
            peers[str(ReplicaName(Role(role), index))] = address
    peers.pop(own, None)
    return peers
