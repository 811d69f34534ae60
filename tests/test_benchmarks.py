"""Benchmarks compare in turns, print only what they measured, and name their commit."""

import json
import re
import sys
from pathlib import Path

import pytest
from benchmarks import aims, report
from benchmarks.report import ROOT, Report, in_turns, ratios
from benchmarks.workloads import Jobs, Workload

BENCHMARKS = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[
    1
].split()


def test_contestants_take_turns_in_changing_order():
    order = []
    results = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert results == {"a": [None] * 3, "b": [None] * 3}


def test_an_uncounted_round_goes_before_those_that_count():
    numbers = iter(range(3))
    assert in_turns({"a": lambda: next(numbers)}, 2, warm=True) == {"a": [1, 2]}


def test_a_ratio_compares_what_was_measured_in_the_same_round():
    # In the last round the machine was half as fast, for both.
    assert ratios([4.0, 4.4, 2.0], [2.0, 2.0, 1.0]) == [2.0, 2.2, 2.0]


def test_a_report_has_its_commit_its_table_and_only_the_figures_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def measure(given, folder):
        print(f"into {folder}")
        figures = {"ratio": 1.25, "rounds": [3.0, 1.0, 1.5], "not_measured": None}
        return Report([{"of": "a", "s": 2.0}, {"of": "b", "s": None}], figures)

    monkeypatch.setattr("sys.argv", ["benchmark", "--quick"])
    report.run(measure, "A benchmark.")
    out, err = capfd.readouterr()
    begin, *table, figures = out.splitlines()
    assert re.match(r"Of commit \w+.*; \d+ cores, load average before", begin)
    assert table == ["", "| of | s |", "|---|---|", "| a | 2.00 |", "| b | – |"]
    assert json.loads(figures) == {"ratio": 1.25, "rounds": 1.5, "rounds_spread": [1.0, 3.0]}
    assert err.startswith("into /")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_runs_in_the_common_frame(name):
    source = (ROOT / "benchmarks" / f"{name}.py").read_text()
    assert "run(measure, __doc__" in source
    assert "given.quick" in source


def test_two_models_with_different_data_are_trained_in_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.path", [*sys.path])
    for name, column in (("squares", "image"), ("sentences", "words")):
        (tmp_path / f"{name}.py").write_text(
            "def list_parts():\n    return [{}]\n"
            "def read_part(part):\n"
            f"    return ((str(n), {{'{column}': n, 'label': n % 2}}) for n in range(50))\n"
        )
    jobs = Jobs(tmp_path, models=tmp_path)
    data = {
        jobs.of(Workload(name, name), "one_device").arguments["data"]
        for name in ("squares", "sentences")
    }
    assert len(data) == 2


def test_each_committed_figure_meets_its_aim_or_says_why_not_and_since_when():
    assert aims.wrong(aims.figures()) == []


@pytest.mark.parametrize(
    ("benchmark", "figure", "value", "said"),
    [
        ("records", "write_over_tf_writer", 1.0, None),  # it is known to be below
        ("input", "read_over_memory", 0.5, "is 0.5, its aim is ≥ 1: say why_below, and since"),
        ("serving", "failed_requests", 1.0, "is 1.0, its aim is ≤ 0: say why_below, and since"),
        ("recovery", "detect_seconds", None, "is None, its aim is ≤ 0.5: say why_below, and since"),
        ("recovery", "goodput", 0.99, "is kept again: remove why_below and since"),
    ],
)
def test_a_figure_that_falls_is_named(benchmark, figure, value, said):
    found = aims.figures()
    found[benchmark][figure] = value
    assert aims.wrong(found) == ([f"{benchmark}: {figure} {said}"] if said else [])


def test_a_figure_whose_rounds_are_on_both_sides_of_its_aim_decides_nothing():
    found = aims.figures()
    found["input"] |= {"read_over_memory": 1.08, "read_over_memory_spread": [0.69, 1.6]}
    [line] = aims.wrong(found)
    assert line.startswith("input: read_over_memory is 1.08 (0.69 to 1.60), its aim is ≥ 1")
    found["input"]["read_over_memory_spread"] = [1.02, 1.6]
    assert aims.wrong(found) == []


def test_a_figure_that_is_known_to_be_below_its_aim_may_not_fall_further():
    name, before, found = "write_over_tf_writer", aims.figures(), aims.figures()
    before["records"] |= {name: 4.0, f"{name}_spread": [3.8, 4.2]}
    found["records"] |= {name: 3.6, f"{name}_spread": [3.2, 3.7]}  # as runs differ
    assert aims.wrong(found, before) == []
    found["records"] |= {name: 2.8, f"{name}_spread": [2.6, 3.0]}
    said = "is 2.80 (2.60 to 3.00), its aim is ≥ 7, and it was 4.00 (3.80 to 4.20)"
    assert aims.wrong(found, before) == [f"records: {name} {said}"]
    del found["records"][name]
    assert len(aims.wrong(found, before)) == 1


def test_a_reason_needs_its_day_and_an_aim_one_bound():
    with pytest.raises(ValueError, match="use both why_below and since"):
        aims.Aim(benchmark="a", figure="x", why="", at_most=1, why_below="slow")
    with pytest.raises(ValueError, match="use either at_least or at_most"):
        aims.Aim(benchmark="a", figure="x", why="")


def test_the_first_page_shows_the_figures_and_their_aims():
    assert aims.table(aims.figures()) in (ROOT / "README.md").read_text()
