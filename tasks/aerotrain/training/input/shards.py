"""The shards of a data set on this machine's disk, each verified by its hash."""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import Dataset, Shard, Split
from aerotrain.store import Store, StoredFile, open_store
from aerotrain.store.manifest import fetch_in_ranges

#: The split on which models are trained.
TRAIN_SPLIT = "train"

#: The folder of shards below the scratch folder.
FOLDER = "shards"

SHARDS_AT_ONCE = 4
RANGES_AT_ONCE = 8


def split_of(dataset: Dataset, name: str) -> Split:
    """The split of that name, which is not empty.

    Raises:
        FinalError: there is none, or it is empty.
    """
    if name not in dataset.splits:
        raise FinalError(
            f"the data set has no split {name!r}{nearest(name, list(dataset.splits))}; "
            f"it has {', '.join(dataset.splits)}"
        )
    split = dataset.splits[name]
    if not split.records:
        raise FinalError(
            f"the split {name!r} of the data set is empty; give it a larger share, or more data"
        )
    return split


def share(shards: Sequence[Shard], index: int, count: int) -> list[Shard]:
    """The shards of reader ``index`` of ``count``; each shard has exactly one reader.

    Raises:
        FinalError: there are fewer shards than readers.
    """
    if len(shards) < count:
        raise FinalError(
            f"{len(shards)} shards cannot be shared by {count} readers, for each reads whole "
            f"shards; prepare {count} shards or more, or ask for fewer workers or input"
        )
    return list(shards[index::count])


def download(url: str, shards: Sequence[Shard], scratch: Path) -> list[Path]:
    """Download shards of the data set at ``url`` below ``scratch``, unless they exist there.

    Returns:
        The paths of the shards.

    Raises:
        CorruptError: a shard does not match the data set's manifest; the message names it.
    """
    store = open_store(url)
    with (
        ThreadPoolExecutor(RANGES_AT_ONCE) as ranges,
        ThreadPoolExecutor(SHARDS_AT_ONCE) as pool,
    ):
        return list(pool.map(lambda shard: bring(store, shard, scratch, ranges), shards))


def bring(store: Store, shard: Shard, scratch: Path, ranges: Executor) -> Path:
    """Download one shard of the data set in ``store``, as ``download`` does, by ``ranges``."""
    path = scratch / FOLDER / shard.file
    expected = StoredFile(bytes=shard.bytes, sha256=shard.sha256)
    if not path.exists() or StoredFile.of(path) != expected:
        fetch_in_ranges(store, shard.file, expected, path, ranges)
    return path
