"""Who attends a training: the courier, the chronicle, and the watchdog."""

import json
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import ReplicaName, Role
from aerotrain.contract.ledger import What
from aerotrain.contract.steps import TrainArguments
from aerotrain.replica import BEGAN, Replica, last_words
from aerotrain.store import Store, open_store
from aerotrain.training.attending.chronicle import Chronicle, NoChronicle
from aerotrain.training.attending.courier import Courier
from aerotrain.training.attending.lease import leased
from aerotrain.training.attending.watchdog import Watchdog

#: Seconds more that workers under ps have, since whoever launched a frozen one ends it first.
_SERVED_LATER = 3.0

#: Seconds that a checkpoint on its way may take to the store when the replica ends itself.
_LAST_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Attendants:
    """Those of one replica: what goes to the ``store`` of its job goes by them."""

    store: Store
    courier: Courier
    chronicle: Chronicle
    #: The addresses of the other replicas of its cluster, by their names.
    peers: Mapping[str, str]

    @classmethod
    def of(cls, replica: Replica, arguments: TrainArguments) -> "Attendants":
        """Begin to attend ``replica``, whose process began some seconds ago."""
        store = open_store(replica.job.prefix)
        courier = Courier(arguments.store_timeout)
        kind = Chronicle if replica.is_chief else NoChronicle
        chronicle = kind(store, courier, generation=replica.generation)
        chronicle.note(What.START, at=BEGAN)
        peers = peers_of(os.environ.get("AEROTRAIN_CLUSTER", "{}"), str(replica.name))
        return cls(store=store, courier=courier, chronicle=chronicle, peers=peers)

    def deliver(self, key: str, content: bytes) -> None:
        """Write an object, and return when it and all before it is in the store.

        Raises:
            TemporaryError: the store has been away for too long.
        """
        self.courier.send(key, lambda: self.store.put(key, content))
        self.courier.wait(math.inf)
        self.courier.check()

    @contextmanager
    def last_errand(self) -> Iterator[None]:
        """A scope that nothing leaves before the courier has had a moment for what it has."""
        try:
            yield
        finally:
            self.courier.wait(_LAST_SECONDS)

    def leased(self, replica: Replica) -> AbstractContextManager[None]:
        """A scope in which no other run's chief may train in this job's store."""
        if not replica.is_chief:
            return nullcontext()
        return leased(self.store, replica.attempt, socket.gethostname())

    def watchdog(self, replica: Replica, excused: Callable[[], bool]) -> Watchdog:
        """The watchdog of ``replica``, at work whenever it is not ``excused``."""

        def end(because: str) -> None:
            last_words(because)
            self.courier.wait(_LAST_SECONDS)
            os._exit(ExitCode.FROZEN)

        deadlines, served = replica.job.deadlines, bool(replica.job.rules.ps)
        watchdog = Watchdog(
            patience=deadlines.progress_timeout + served * _SERVED_LATER,
            first=deadlines.start,
            peers=self.peers,
            end=end,
            excused=excused,
        )
        watchdog.start()
        return watchdog


def peers_of(cluster: str, own: str) -> dict[str, str]:
    """The addresses in a cluster, as JSON by role, by the names of replicas but ``own``."""
    peers: dict[str, str] = {}
    for role, addresses in json.loads(cluster).items():
        for index, address in enumerate(addresses):
            peers[str(ReplicaName(Role(role), index))] = address
    peers.pop(own, None)
    return peers
