"""A network namespace for one training, to drop packets without closing connections."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: One table, so that deleting it ends all dropping.
_TABLE = "chaos"


@dataclass(frozen=True)
class Network:
    """A network namespace with only loopback; ``inside`` is the prefix of a command within it."""

    inside: tuple[str, ...]

    def drop(self, port: int) -> None:
        """Drop all packets from and to the port, including those of open connections."""
        self._nft(
            f"add table inet {_TABLE}\n"
            f"add chain inet {_TABLE} in {{ type filter hook input priority 0; }}\n"
            f"add rule inet {_TABLE} in tcp dport {port} drop\n"
            f"add rule inet {_TABLE} in tcp sport {port} drop\n"
        )

    def mend(self) -> None:
        """Stop dropping packets."""
        self._nft(f"delete table inet {_TABLE}\n")

    def _nft(self, rules: str) -> None:
        subprocess.run([*self.inside, "nft", "-f", "-"], input=rules.encode(), check=True)


@contextmanager
def network() -> Iterator[Network]:
    """A new network namespace; it exists until the block and all processes within it have ended."""
    words = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            if not holder.stdout.readline():
                raise RuntimeError(
                    "unshare could not create a network namespace; its error is above"
                )
            yield Network(("nsenter", f"--net=/proc/{holder.pid}/ns/net"))
        finally:
            holder.kill()
