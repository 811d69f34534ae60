"""Group the fragments of a source into partitions, by their names and sizes."""

from collections.abc import Iterable, Iterator

from aerotrain.data.sources import Fragment
from aerotrain.data.sources.naming import short_hash


def grouped(fragments: Iterable[Fragment], part_bytes: int, seed: int) -> Iterator[list[Fragment]]:
    """The fragments of each partition, about ``part_bytes`` bytes of records together.

    A fragment of unknown size is a partition of its own. The others are sorted by a hash of
    ``seed`` and their names, so that records of distant files are shuffled together, and a changed
    fragment changes no partition but its own.
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
