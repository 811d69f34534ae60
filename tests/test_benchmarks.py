"""Benchmarks compare in turns, print only what they measured, and name their commit."""

import json
import re
import sys
from pathlib import Path

import pytest
from benchmarks import report
from benchmarks.report import ROOT, Report, in_turns, median_ratio
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


def test_a_ratio_is_the_median_of_those_of_the_rounds():
    # In the last round the machine was half as fast, for both.
    assert median_ratio([4.0, 4.4, 2.0], [2.0, 2.0, 1.0]) == 2.0


def test_a_report_has_its_commit_its_table_and_only_the_figures_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def measure(given, folder):
        print(f"into {folder}")
        figures = {"ratio": 1.25, "not_measured": None}
        return Report([{"of": "a", "s": 2.0}, {"of": "b", "s": None}], figures)

    monkeypatch.setattr("sys.argv", ["benchmark", "--quick"])
    report.run(measure, "A benchmark.")
    out, err = capfd.readouterr()
    begin, *table, figures = out.splitlines()
    assert re.match(r"Of commit \w+.*; \d+ cores, load average before", begin)
    assert table == ["", "| of | s |", "|---|---|", "| a | 2.00 |", "| b | – |"]
    assert json.loads(figures) == {"ratio": 1.25}
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
