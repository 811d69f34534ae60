"""Which pieces of a source make which part: arithmetic on their names and sizes."""

from collections.abc import Iterable, Iterator

from aerotrain.sources import Fragment
from aerotrain.sources.naming import short_hash


def grouped(fragments: Iterable[Fragment], part_bytes: int, seed: int) -> Iterator[list[Fragment]]:
    """The pieces of each part, about ``part_bytes`` of records together.

    A piece whose size nobody knows is a part by itself. The others are taken in an order made of
    ``seed`` and their names: so records of files that lie far apart are shuffled together, and
    one piece that changes leaves all parts but its own as they were.
    """
    sized: list[Fragment] = []
    for fragment in fragments:
        if fragment.bytes is None:
            yield [fragment]
        else:
            sized.append(fragment)
    sized.sort(key=lambda fragment: short_hash(str(seed), fragment.name))
    group: list[Fragment] = []
    size = 0
    for fragment in sized:
        if group and size + (fragment.bytes or 0) > part_bytes:
            yield group
            group, size = [], 0
        group.append(fragment)
        size += fragment.bytes or 0
    if group:
        yield group
