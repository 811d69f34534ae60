"""The figures of the tables in ``results/``, compared with their aims in ``aims.toml``.

``python -m benchmarks.aims`` prints a row for each aim, and fails if a figure misses it without a
reason there. ``--before`` adds the figures of the last commit, as after ``make bench``, and fails
also if one that misses its aim has become worse than there. ``--write PAGE`` replaces the table in
a page.
"""

import argparse
import io
import json
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, SPREAD, git, print_table, with_spread

AIMS = ROOT / "benchmarks" / "aims.toml"
RESULTS = "benchmarks/results"

#: What is around the table in a page.
BEGIN, END = "<!-- written by python -m benchmarks.aims -->\n", "<!-- end of the aims -->\n"

#: The part of a figure by which a run may be worse than the one before: machines are not quiet.
NOISE = 0.1

#: Of each benchmark, its figures by name, and their spreads.
Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Aim:
    """The bound of a figure; ``why_below`` and ``since`` explain one that misses it.

    Raises:
        ValueError: it has no bound, or two, or only one part of an explanation.
    """

    benchmark: str
    figure: str
    why: str
    at_least: float | None = None
    at_most: float | None = None
    why_below: str = ""
    since: date | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.figure}: use either at_least or at_most")
        if bool(self.why_below) != bool(self.since):
            raise ValueError(f"{self.figure}: use both why_below and since, or neither")

    @property
    def bound(self) -> str:
        return f"≤ {self.at_most:g}" if self.at_least is None else f"≥ {self.at_least:g}"

    def value(self, figures: Figures) -> float | None:
        return figures.get(self.benchmark, {}).get(self.figure)

    def spread(self, figures: Figures) -> tuple[float, float] | None:
        """The least and the greatest value of the rounds, where there was more than one."""
        return figures.get(self.benchmark, {}).get(f"{self.figure}{SPREAD}")

    def outcome(self, figures: Figures, before: Figures | None = None) -> str:
        """``kept``, why it is below, or what is wrong if nothing says why.

        That is ``not measured``, ``fallen``, or ``undecided`` if some rounds meet the aim and
        others do not. A figure that is below has ``fallen``, too, if it was better ``before``.
        """
        value, below = self.value(figures), f"below since {self.since}: {self.why_below}"
        if before is not None and self._fell(figures, before):
            below = "fallen"
        if value is None:
            return below if self.why_below else "not measured"
        least, greatest = self.spread(figures) or (value, value)
        bound = self.at_least if self.at_most is None else self.at_most
        assert bound is not None  # one of both is given
        if least < bound < greatest:
            return below if self.why_below else "undecided"
        if value >= bound if self.at_most is None else value <= bound:
            return "kept"
        return below if self.why_below else "fallen"

    def _fell(self, figures: Figures, before: Figures) -> bool:
        """Whether even its best round is worse than the worst one before, or it is gone."""
        value, was = self.value(figures), self.value(before)
        if value is None or was is None:
            return was is not None
        least, greatest = self.spread(figures) or (value, value)
        least_before, greatest_before = self.spread(before) or (was, was)
        if self.at_most is None:
            return greatest < least_before * (1 - NOISE)
        return least > greatest_before * (1 + NOISE)

    def shown(self, figures: Figures) -> str | float | None:
        """The figure with its spread."""
        value, spread = self.value(figures), self.spread(figures)
        if value is None or spread is None:
            return value
        return with_spread(value, *spread)


def aims() -> list[Aim]:
    """The aims of ``aims.toml``."""
    return [
        Aim(benchmark=benchmark, figure=figure, **values)
        for benchmark, named in tomllib.loads(AIMS.read_text()).items()
        for figure, values in named.items()
    ]


def current(path: str) -> str:
    return (ROOT / path).read_text()


def committed(path: str) -> str:
    return git("show", f"HEAD:{path}")


def figures(read: Callable[[str], str] = current) -> Figures:
    """The figures of all tables; ``read`` returns the text of a file of this project."""
    found: Figures = {}
    for benchmark in dict.fromkeys(aim.benchmark for aim in aims()):
        if benchmark == "models":
            rows = json.loads(read(f"{RESULTS}/models.json"))["200 MB"].items()
            found[benchmark] = {
                f"save_stall_seconds_200mb_{strategy}": row["stall"] for strategy, row in rows
            }
        else:
            found[benchmark] = json.loads(read(f"{RESULTS}/{benchmark}.md").splitlines()[-1])
    return found


def table(found: Figures, before: Figures | None = None) -> str:
    """A row for each aim, in Markdown; with the figures before, if given."""
    rows: list[dict[str, Any]] = [
        {
            "figure": f"{aim.benchmark}: {aim.figure}",
            "aim": aim.bound,
            **({} if before is None else {"before": aim.shown(before)}),
            "measured": aim.shown(found),
            "": aim.outcome(found, before),
        }
        for aim in aims()
    ]
    with redirect_stdout(io.StringIO()) as text:
        print_table(rows)
    return text.getvalue()


def wrong(found: Figures, before: Figures | None = None) -> list[str]:
    """The figures that miss their aims without a reason, and those with a reason that do not.

    With the figures ``before``, also those that miss their aims by more than they did.
    """
    lines = []
    for aim in aims():
        name, outcome = f"{aim.benchmark}: {aim.figure}", aim.outcome(found, before)
        value = aim.shown(found)
        if outcome == "fallen" and aim.why_below:
            was = aim.shown(before or {})
            lines.append(f"{name} is {value}, its aim is {aim.bound}, and it was {was}")
        elif outcome in ("fallen", "not measured", "undecided"):
            lines.append(f"{name} is {value}, its aim is {aim.bound}: say why_below, and since")
        elif outcome == "kept" and aim.why_below:
            lines.append(f"{name} is kept again: remove why_below and since")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aims", description=__doc__)
    parser.add_argument("--before", action="store_true", help="with those of the last commit")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into a page")
    given = parser.parse_args()
    found = figures()
    before = figures(committed) if given.before else None
    if given.write:
        begin, _, rest = given.write.read_text().partition(BEGIN)
        given.write.write_text(f"{begin}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}")
    else:
        print(table(found, before), end="")
    if lines := wrong(found, before):
        sys.exit("\n".join([f"in {AIMS.relative_to(ROOT)}:", *lines]))


if __name__ == "__main__":
    main()
