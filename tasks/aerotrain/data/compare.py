"""The page of two data sets side by side, of any two in a store."""

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import load_dataset, load_pictures, load_statistics
from aerotrain.data.prepare.finalize import rejections_of, written_partitions
from aerotrain.data.prepare.layout import Plan
from aerotrain.data.statistics.page import DataComparison, Described, page
from aerotrain.store import open_store


def page_of_two(before: str, now: str) -> str:
    """The page of the data set at ``now``, compared with the one at ``before``.

    Columns are compared by the rules with which ``now`` was prepared.

    Raises:
        FinalError: one of them has no statistics, or is of another version.
        MissingError: one of them is not finished.
    """
    load_dataset(before)
    dataset, store = load_dataset(now), open_store(now)
    plan = Plan.read(store)
    described = _described(now)
    comparison = DataComparison.of(_described(before), described, plan.rules)
    rejected = rejections_of(store, written_partitions(store, plan))
    return page(described, dataset.splits, plan.inferred, comparison, dataset.label, rejected)


def _described(url: str) -> Described:
    summary = load_statistics(url)
    if not summary:
        raise FinalError(f"the data set at {url} has no statistics; prepare it again")
    return Described(url=url, summary=summary, pictures=load_pictures(url))
