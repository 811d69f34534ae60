"""The command ``aerotrain new``: reads, decides, says what it decided, and writes."""

import keyword
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from aerotrain.contract.errors import SpecError, counted
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.sources.batch import Rejected
from aerotrain.scaffold.columns import ColumnDecision, Use, decide
from aerotrain.scaffold.label import label_of, name_of_label
from aerotrain.scaffold.pipeline import (
    MOST_REJECTED,
    Columns,
    OutputPlace,
    most_rejected,
    of_columns,
    of_images,
    write,
)
from aerotrain.scaffold.sample import ImageSample, SourceSample, look_at, rejected_by, url_of

#: Names that a DAG file imports, or that name its parts.
_TAKEN = {"dag", "timedelta", "Path", "RunParam", "training_params", "at_least", "no_worse"}
_TAKEN |= {"better_than_trivial", "prepare", "train", "evaluate", "export", "promote"}

#: Asks for one of several columns.
Ask = Callable[[Sequence[str]], str]


def run(given: Namespace, ask: Ask | None) -> None:
    """Carry out the command, and print what was decided and written.

    ``ask`` is None without a terminal.

    Raises:
        FinalError: the name is taken, or the data cannot be used; the message says what to do.
    """
    _check_name(given.name)
    place = OutputPlace(name=given.name, folder=Path(given.to).resolve(), url=url_of(given.address))
    _check_free(place)
    sample = look_at(given.address)
    if isinstance(sample, ImageSample):
        if given.label or given.task == "regression":
            raise SpecError("the class of an image is its folder; leave --label and --task out")
        texts = of_images(place, sample)
        _print_table(_rows_of_images(sample))
    else:
        columns = _decided(given, sample, ask)
        texts = of_columns(place, columns)
        _print_table(_rows(columns))
    paths = write(place, texts)
    print(f"wrote {', '.join(map(str, paths))}")
    ignored = place.ignored.read_text().split()
    if missing := [line for line in place.hidden if line not in ignored]:
        print(
            f"add {' and '.join(missing)} to {place.ignored}, or Airflow parses the files there as "
            "DAG files"
        )
    run = f"make run DAG={given.name}, or " if place.folder == Path("dags").resolve() else ""
    print(f"run it: {run}trigger {given.name} in the Airflow that reads {place.folder}")
    print(f"test the module: {quote(sys.executable)} -m pytest {quote(str(paths[2]))}", flush=True)


def _check_name(name: str) -> None:
    if keyword.iskeyword(name):
        raise SpecError(f"{name!r} is a keyword of Python; choose another name, such as my_{name}")
    if not (name.isidentifier() and name.isascii()):
        raise SpecError(
            f"{name!r} cannot name a module; use letters from a to z, digits and underscores, and "
            "begin with a letter"
        )
    if name in _TAKEN or name in sys.stdlib_module_names or find_spec(name) is not None:
        raise SpecError(
            f"{name!r} is the name of a Python module, or of a part of a DAG file, which yours "
            f"would hide; choose another one, such as {name}_model"
        )


def _check_free(place: OutputPlace) -> None:
    for path in place.files().values():
        if path.exists():
            raise SpecError(
                f"{path} exists, and is not overwritten; choose another name, or move it"
            )


def _decided(given: Namespace, sample: SourceSample, ask: Ask | None) -> Columns:
    """What the columns are for, once no word is left that means a missing value of some column.

    Such a word means it in all columns, so the records are read again. Classes mean none.
    """
    is_json, name = sample.description["kind"] == "jsonl", given.label
    while True:
        columns = sample.columns
        decisions = {name: decide(column, is_json=is_json) for name, column in columns.items()}
        name = name_of_label(given.name, columns, decisions, name, ask)
        label = label_of(columns[name], given.task)
        others = [each.nulls for other, each in decisions.items() if other != name]
        words = {*label.column.words}.union(*others) - label.column.counts.keys()
        if not words:
            break
        again = look_at(given.address, {*sample.description.get("nulls", ()), *words})
        assert isinstance(again, SourceSample)
        sample = again
    decisions[name] = ColumnDecision(
        use=Use.CATEGORY if label.classes else Use.NUMBER, why=label.why
    )
    found = Columns(sample=sample, decisions=decisions, label=label)
    if not any(map(found.of, (Use.NUMBER, Use.CATEGORY, Use.TEXT))):
        raise SpecError(
            f"no column is left to predict {name!r} from: "
            + "; ".join(
                f"{other} {decision.why}" for other, decision in decisions.items() if other != name
            )
        )
    source = {**found.source(), "url": sample.description["url"]}
    return replace(found, rejected=rejected_by(PlanArguments(source=source, **found.rules())))


def _rows(columns: Columns) -> list[tuple[str, str]]:
    """What each column was found to be, in words."""
    rows = []
    for name, decision in columns.decisions.items():
        what = f"{decision.use}: {decision.why}"
        if name == columns.label.name:
            what = decision.why
            if missing := columns.label.column.missing:
                what += f"; {counted(missing, 'record')} without it"
        elif name == columns.key:
            what = f"key of the records: {decision.why}"
        elif decision.use is Use.KEY:
            what = f"left out, an identifier: {decision.why}"
        elif decision.use is Use.LEFT_OUT:
            what = f"left out: {decision.why}"
        doubt = columns.sample.doubts.get(name)
        if doubt and not columns.sample.columns[name].form:
            what += f"; read as texts: {doubt}"
        rows.append((name, what))
    rows += [(name, f"left out: {why}") for name, why in columns.sample.left_out.items()]
    read = f"{columns.sample.records:,} records"
    if not columns.sample.is_whole:
        read += " from all over the data"
    rows.append(("(all)", read))
    if words := columns.sample.description.get("nulls"):
        shown = ", ".join(map(repr, words[:6])) + (", …" if len(words) > 6 else "")
        rows.append(("(missing)", f"words for a missing value, in all columns: {shown}"))
    return rows + _rejected(columns.sample, columns.rejected)


def _rows_of_images(sample: ImageSample) -> list[tuple[str, str]]:
    """How many files each class has, and which files are no images."""
    rows = [(name, f"class, {counted(count, 'image')}") for name, count in sample.counts.items()]
    if sample.not_read:
        rows.append(("(others)", sample.not_read))
    return rows + _rejected(sample, sample.rejected)


def _rejected(
    sample: SourceSample | ImageSample, rejected: Sequence[Rejected]
) -> list[tuple[str, str]]:
    """What becomes of the records that do not fit, if there are some."""
    if not rejected:
        return []
    return [("(rejected)", _fate(sample, rejected))]


def _fate(sample: SourceSample | ImageSample, rejected: Sequence[Rejected]) -> str:
    first = rejected[0]
    where = f"{first.place} of {first.file.rpartition('/')[2]}"
    records = f"{counted(len(rejected), 'record')}, the first at {where}: {first.reason}"
    if not sample.is_whole:
        return f"of these, {records}; give prepare max_rejected in the DAG to leave such ones out"
    if most := most_rejected(sample, rejected):
        return (
            f"{records}; left out by max_rejected={most} in the DAG: a run fails if there are more"
        )
    return (
        f"{records}; more than {MOST_REJECTED:.0%}: a run fails and names the first; correct them, "
        "or give prepare max_rejected in the DAG to leave them out"
    )


def _print_table(rows: Sequence[tuple[str, str]]) -> None:
    width = min(40, max(len(name) for name, _ in rows))
    for name, what in rows:
        print(f"  {name:{width}}  {what}")


def asked(candidates: Sequence[str]) -> str:
    """The column that the user types at the terminal."""
    print(f"Which column is to be predicted? Probably one of: {', '.join(candidates)}")
    return input("column: ").strip()
