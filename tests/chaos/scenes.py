"""The environments in which faults are injected, and what this machine lacks for them.

Each scene is opened by the first fault that needs it, and has a testbed of its own: a store, the
prepared digits, and the folder of the replica groups. All is removed when the stack closes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.testbed import Testbed, processes_in

from chaos.network import Network, network
from devtools.s3_server import OwnS3Server, s3_server

BUCKET = "chaos"

#: Bytes of the small disk: a training of the digits takes a tenth of it.
DISK = 64 << 20


class Place(StrEnum):
    """What a fault needs besides its training."""

    PLAIN = "plain"
    SERVER = "a store that is a server"
    SMALL_DISK = "a disk of its own"
    NETWORK = "a network of its own"


@dataclass(kw_only=True)
class Scene:
    """A place, and the tools that inject faults in it."""

    testbed: Testbed
    server: OwnS3Server | None = None
    disk: Path | None = None
    network: Network | None = None


@contextmanager
def _plain(folder: Path) -> Iterator[Scene]:
    yield Scene(testbed=Testbed(folder))


@contextmanager
def _with_server(folder: Path) -> Iterator[Scene]:
    with s3_server(folder / "s3") as server:
        server.make_bucket(BUCKET)
        # This process reads the store too; file:// stores do not use these variables.
        os.environ |= server.environment
        yield Scene(testbed=Testbed(folder, store=f"s3://{BUCKET}/digits"), server=server)


@contextmanager
def _with_small_disk(folder: Path) -> Iterator[Scene]:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "chaos", str(disk)], check=True)
    try:
        yield Scene(testbed=Testbed(folder, launcher=processes_in(disk / "sets")), disk=disk)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def _with_network(folder: Path) -> Iterator[Scene]:
    with network() as made:
        python = folder / "python-in-a-network"
        inside = " ".join(made.inside)
        python.write_text(f'#!/bin/sh\nexec {inside} {sys.executable} "$@"\n')
        python.chmod(0o755)
        launcher = processes_in(folder / "sets", str(python))
        yield Scene(testbed=Testbed(folder, launcher=launcher), network=made)


def _lacks_mounts() -> str:
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "chaos", "/mnt"],
        capture_output=True,
        check=False,
    )
    return "" if tried.returncode == 0 else "cannot mount a disk (be root)"


def _lacks_network() -> str:
    missing = [name for name in ("unshare", "nsenter", "ip", "nft") if not shutil.which(name)]
    if missing:
        return f"has no {', '.join(missing)} (on Debian: apt install iproute2 nftables)"
    tried = subprocess.run(
        ["unshare", "--net", "nft", "list", "ruleset"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "cannot create a network namespace (be root)"


#: How to make each place, and what this machine lacks for it, if anything.
_MADE: Mapping[Place, tuple[Callable[[Path], AbstractContextManager[Scene]], Callable[[], str]]] = {
    Place.PLAIN: (_plain, lambda: ""),
    Place.SERVER: (_with_server, lambda: ""),
    Place.SMALL_DISK: (_with_small_disk, _lacks_mounts),
    Place.NETWORK: (_with_network, _lacks_network),
}


def lacking(place: Place) -> str:
    """What this machine lacks for the place, as a continuation of "this machine"."""
    return _MADE[place][1]()


def scene_of(place: Place, folder: Path) -> AbstractContextManager[Scene]:
    """The place, made in ``folder`` for the duration of the block."""
    folder.mkdir()
    return _MADE[place][0](folder)
