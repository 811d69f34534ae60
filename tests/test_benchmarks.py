"""Benchmarks compare in turns, and name the commit of their tables."""

import re
from pathlib import Path

import pytest
from benchmarks import workloads
from benchmarks.report import ROOT, in_turns, median_ratio

BENCHMARKS = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[
    1
].split()


def test_contestants_take_turns_in_changing_order():
    order = []
    results = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert results == {"a": [None] * 3, "b": [None] * 3}


def test_a_ratio_is_the_median_of_those_of_the_rounds():
    # In the last round the machine was half as fast, for both.
    assert median_ratio([4.0, 4.4, 2.0], [2.0, 2.0, 1.0]) == 2.0


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_has_a_short_run_names_its_commit_and_ends_with_figures(name):
    source = (ROOT / "benchmarks" / f"{name}.py").read_text()
    assert '"--quick"' in source
    assert "print_origin()" in source
    assert "print_report(" in source


def test_two_models_with_different_data_are_trained_in_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, column in (("squares", "image"), ("sentences", "words")):
        (tmp_path / f"{name}.py").write_text(
            "def list_parts():\n    return [{}]\n"
            "def read_part(part):\n"
            f"    return ((str(n), {{'{column}': n, 'label': n % 2}}) for n in range(50))\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    jobs = workloads.Jobs(tmp_path)
    data = {
        jobs.train(workloads.Workload(name, name, "", ()), "one_device").arguments["data"]
        for name in ("squares", "sentences")
    }
    assert len(data) == 2
