"""Which pieces of a source make which part: arithmetic on their names and sizes."""

from collections.abc import Iterable, Iterator

from aerotrain.sources import Piece
from aerotrain.sources.naming import short_hash


def grouped(pieces: Iterable[Piece], part_bytes: int, seed: int) -> Iterator[list[Piece]]:
    """The pieces of each part, about ``part_bytes`` of records together.

    A piece whose size nobody knows is a part by itself. The others are taken in an order made of
    ``seed`` and their names: so records of files that lie far apart are shuffled together, and
    one piece that changes leaves all parts but its own as they were.
    """
    sized: list[Piece] = []
    for piece in pieces:
        if piece.bytes is None:
            yield [piece]
        else:
            sized.append(piece)
    sized.sort(key=lambda piece: short_hash(str(seed), piece.name))
    group: list[Piece] = []
    size = 0
    for piece in sized:
        if group and size + (piece.bytes or 0) > part_bytes:
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.bytes or 0
    if group:
        yield group
