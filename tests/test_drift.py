"""Drift: what changed stops the run, and what did not change never does."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.data.hashing import position_hashes
from aerotrain.data.records.columns import column_of
from aerotrain.data.statistics.column import Statistics
from aerotrain.data.statistics.drift import compared
from aerotrain.standalone import prepare

WORDS = np.array([f"word-{number}" for number in range(2000)])
LONG_TAIL = 1 / np.arange(1, 2001)
LONG_TAIL /= LONG_TAIL.sum()


def summary(seed: str, **columns: Any) -> dict[str, dict[str, Any]]:
    """The statistics of a data set with these columns, of which ``seed`` decides the sample."""
    statistics = Statistics()
    described = {each: column_of(each, values) for each, values in columns.items()}
    records = len(next(iter(described.values())))
    statistics.add(described, {}, position_hashes(seed, np.arange(records)))
    return statistics.summary()


def rules(**options: Any) -> PlanArguments:
    return PlanArguments(source={"kind": "python", "module": "x"}, **options)


def found(before: Any, now: Any, name: str = "x", **options: Any) -> list[str]:
    """What changed from one column to another, in words."""
    both = summary("before", **{name: before}), summary("now", **{name: now})
    return [each.what for each in compared("", *both, rules(**options)).changes]


def records_of(random: np.random.Generator, count: int) -> dict[str, Any]:
    """Records of a population that never changes."""
    prices = random.lognormal(3, 2, count)
    prices[random.random(count) < 0.1] = np.nan
    return {
        "normal": random.normal(size=count),
        "often zero": random.gamma(2, 30, count) * (random.random(count) < 0.5),
        "price": prices,
        "long tail": pa.array(random.choice(WORDS, count, p=LONG_TAIL)),
        "many categories": random.integers(0, 150, count),
        "label": (random.random(count) < 0.01).astype(np.int64),
    }


def test_unchanged_columns_are_refused_in_at_most_one_of_a_hundred_runs() -> None:
    random = np.random.default_rng(0)
    sizes = (30, 100, 100, 400)
    before = summary("", **records_of(random, sizes[-1]))
    refused: Counter[str] = Counter()
    for run in range(300):
        now = summary(f"{run}", **records_of(random, sizes[run % len(sizes)]))
        changes = compared("", before, now, rules(drift=0.01)).changes
        refused.update({each.column for each in changes})
        before = now
    assert max(refused.values(), default=0) <= 4, refused


@pytest.mark.parametrize("count", [200, 20_000])
def test_a_category_with_a_long_tail_is_accepted_again_and_again(count: int) -> None:
    random = np.random.default_rng(1)
    samples = [pa.array(random.choice(WORDS, count, p=LONG_TAIL)) for _ in range(11)]
    for before, now in pairwise(samples):
        assert found(before, now) == []


def share(part: float, one: Any, other: Any, count: int = 1000) -> Any:
    """A column with a part of one value, and the rest of another."""
    is_one = np.arange(count) < part * count
    return np.where(is_one, one, other)


NORMAL = np.random.default_rng(2).normal(size=2000)
LONG = np.random.default_rng(3).choice(WORDS, 2000, p=LONG_TAIL)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (share(0.01, 1, 0), share(0.2, 1, 0), "drift of 0.2"),
        (share(0.01, 1, 0, 100), share(0.2, 1, 0, 100), "drift of 0.2"),
        (share(0, np.nan, 1.5), share(0.2, np.nan, 1.5), "missing"),
        (share(0.5, "a", "b"), share(0.9, "a", "b"), "drift of 0.3"),
        (NORMAL, NORMAL + 0.7, "drift of 0.2"),
        (NORMAL, NORMAL * 3, "drift of 0.2"),
        (LONG, np.where(np.arange(2000) % 2, LONG, "word-1"), "drift of 0.4"),
        (LONG, np.where(np.arange(2000) % 5, LONG, "another"), "new category"),
        (share(0.5, "a", "b"), share(0.05, "c", "b"), "new category"),
        (share(0.02, "a", "b", 10**5), share(0.02, "c", "b", 1000), "new category"),
        (np.arange(2000) ** 2, np.arange(2000) ** 2 * 100, "drift of 0.9"),
        (np.arange(1000) % 50, np.arange(1000) % 50 + 25, "drift of 0.69"),
        (np.full(1000, False), np.full(1000, True), "drift of 1.00"),
    ],
)
def test_a_change_is_found(before: Any, now: Any, what: str) -> None:
    assert any(each.startswith(what) for each in found(before, now))


def test_a_label_may_neither_get_nor_lose_a_class() -> None:
    label = np.arange(1000) % 4
    more = np.where(np.arange(1000) < 9, 4, label)
    assert found(label, more) == []
    assert found(label, more, "label") == ["new category"]
    assert found(more, label, "label") == ["category missing"]
    assert found(np.zeros(1000, np.int64), np.ones(1000, np.int64)) == []
    assert "drift of 1.00" in found(np.zeros(1000, np.int64), np.ones(1000, np.int64), "label")


DAY = 86_400_000_000
EVENTS = 1_760_000_000_000_000 + np.sort(np.random.default_rng(4).integers(0, DAY, 1000))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (np.arange(1000), np.arange(1000, 3000)),
        (np.arange(1000), np.arange(2000)),
        (np.arange(1000) // 3, 400 + np.arange(1000) // 3),
        (EVENTS, EVENTS + DAY),
        (EVENTS // 10**6, (EVENTS + 9 * DAY) // 10**6),
        (np.full(1000, 20260131), np.full(1000, 20260201)),
        (np.full(1000, 17), np.full(1000, 18)),
        (np.full(1000, "2026-01-31"), np.full(1000, "2026-02-01")),
        (np.full(1000, "2026-01-31T12:00:00Z"), np.full(1000, "2026-02-01 13:00:00.5+01:00")),
        ([f"user-{n}" for n in range(150)], [f"user-{n}" for n in range(150, 300)]),
    ],
)
def test_keys_and_times_that_grow_are_no_drift(before: Any, now: Any) -> None:
    assert found(np.array(before), np.array(now)) == []


def test_keys_and_times_are_recognized_by_the_rules_and_types_of_the_data_set(
    tmp_path: Path,
) -> None:
    """Every key and every time lies far from those of the day before."""
    random = np.random.default_rng(5)
    for day in range(2):
        table = pa.table(
            {
                "customer": random.integers(0, 300, 1000) ** 2 + day * 10**6,
                "number": np.arange(1000) % 500 + day * 10**7,
                "day": pa.array(np.full(1000, day * 7, np.int32)).cast(pa.date32()),
                "at": (random.integers(0, 60, 1000) ** 2 + day * DAY).astype("datetime64[us]"),
                "opened": random.integers(0, 60, 1000) ** 2 + day * 7000,
            }
        )
        pq.write_table(table, tmp_path / "x.parquet")
        url = prepare(
            (tmp_path / "store").as_uri(),
            tmp_path,
            {"kind": "parquet", "url": f"{tmp_path.as_uri()}/x.parquet"},
            key=["customer", "number", "at", "opened"],
            splits={"train": 0.5, "test": 0.5},
            split_by={"way": "time", "column": "opened", "until": {"train": 1800, "test": None}}
            if not day
            else {"way": "time", "column": "opened", "until": {"train": 8800, "test": None}},
        )
    assert load_dataset(url).splits["train"].records > 0


def test_a_rule_sets_the_limit_or_the_kind_of_a_column_or_turns_it_off() -> None:
    def changed(rule: Any) -> list[str]:
        return found(NORMAL, NORMAL + 1, drift_rules={"x": rule})

    assert changed({}) == changed({"kind": "number"}) == ["drift of 0.39"]
    assert changed("off") == changed({"kind": "key"}) == changed({"limit": 0.5}) == []
    assert changed({"limit": 0.3}) != []
    ids = np.arange(1000)
    assert found(ids, ids + 1000, drift_rules={"x": {"kind": "number"}}) == ["drift of 1.00"]
    codes, others = np.where(ids < 500, 7, ids), np.where(ids < 500, 8, ids)
    assert found(codes, others, drift_rules={"x": {"kind": "category"}})[0] == "new category"
    missing = share(0.5, np.nan, 1.0)
    assert found(NORMAL, missing, drift_rules={"x": {"kind": "time"}}) == ["missing"]
    assert found(NORMAL, missing, drift_rules={"x": "off"}) == []


@pytest.mark.parametrize(
    "rule", ["on", 0.3, {"limit": 0}, {"limit": "a"}, {"kind": "float"}, {"lmit": 0.5}]
)
def test_a_rule_that_says_something_else_is_refused(rule: Any) -> None:
    with pytest.raises(SpecError, match="the drift rule of 'x' must be 'off', or an object"):
        rules(drift_rules={"x": rule})


def test_a_rule_names_a_column(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("price\n1\n")
    source = {"kind": "csv", "url": tmp_path.as_uri()}
    with pytest.raises(FinalError, match=r"drift_rules names a column 'prize', .* mean 'price'"):
        prepare((tmp_path / "s").as_uri(), tmp_path, source, drift_rules={"prize": "off"})
    (tmp_path / "x.csv").write_text("price\n1.5\n")
    kind = {"price": {"kind": "category"}}
    with pytest.raises(FinalError, match=r"rule of kind 'category' names .* it takes texts"):
        prepare((tmp_path / "s").as_uri(), tmp_path, source, drift_rules=kind)
