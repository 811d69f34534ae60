"""The three files of a pipeline: what fills their templates, by what the data look like."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from aerotrain.scaffold.columns import ColumnDecision, SampledColumn, Use
from aerotrain.scaffold.label import Label, Task
from aerotrain.scaffold.literals import Expression, call, literal
from aerotrain.scaffold.sample import ImageSample, SourceSample
from aerotrain.scaffold.templates import filled

#: The steps that a small model needs, records of a step, and the bounds of epochs.
_STEPS, _BATCH, _LEAST_EPOCHS, _MOST_EPOCHS = 600, 32, 5, 60

#: The share of texts that are read to their ends, and the most words.
_LENGTH_QUANTILE, _MOST_WORDS = 0.95, 200

#: The share of records up to which those that do not fit are left out. Of more, a user decides.
MOST_REJECTED = 0.01

#: How many times more records may not fit than it seems by those that were read.
_MARGIN = 3

_OUTPUTS = {
    Task.BINARY: 'keras.layers.Dense(1, activation="sigmoid"),',
    Task.SEVERAL: 'keras.layers.Dense(len(CLASSES), activation="softmax"),',
    Task.REGRESSION: (
        "keras.layers.Dense(1),\n            keras.layers.Rescaling(DEVIATION, offset=MEAN),"
    ),
}
_LOSSES = {
    Task.BINARY: '"binary_crossentropy"',
    Task.SEVERAL: '"sparse_categorical_crossentropy"',
    Task.REGRESSION: '"mean_squared_error"',
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a table or of JSON lines: what each is used for, and which is the label."""

    sample: SourceSample
    decisions: Mapping[str, ColumnDecision]
    label: Label

    def of(self, use: Use) -> tuple[str, ...]:
        """The columns with that use, except the label."""
        return tuple(
            name
            for name, each in self.decisions.items()
            if each.use is use and name != self.label.name
        )

    @property
    def key(self) -> str | None:
        """The column that identifies a record, known only where all records were read."""
        unique = (name for name in self.of(Use.KEY) if self.sample.columns[name].is_unique)
        return next(unique, None) if self.sample.is_whole else None

    @property
    def skipped(self) -> list[str]:
        """The columns that are not read."""
        left = [*self.of(Use.LEFT_OUT), *(name for name in self.of(Use.KEY) if name != self.key)]
        given = self.sample.description.get("skip", [])
        return [*given, *(name for name in self.sample.columns if name in left)]

    def source(self) -> dict[str, Any]:
        """The description of the source, without its URL."""
        described = {n: each for n, each in self.sample.description.items() if n != "url"}
        used = {name: each for name, each in self.decisions.items() if name not in self.skipped}
        given = self.sample.description.get("types", {})
        types: dict[str, Any] = {name: each.type or given.get(name) for name, each in used.items()}
        types = {name: each for name, each in types.items() if each}
        types.pop(self.label.name, None)
        if self.label.column.is_text and self.label.classes is not None:
            types[self.label.name] = list(self.label.classes)
        words = {word for each in used.values() for word in each.nulls if not self._is_class(word)}
        if words:
            described["nulls"] = sorted({*described.get("nulls", []), *words})
        if self.skipped:
            described["skip"] = self.skipped
        described |= {"types": types}
        if not types:
            del described["types"]
        return described

    def rules(self) -> dict[str, Any]:
        """The arguments of ``prepare`` besides the source."""
        label = self.label
        rules: dict[str, Any] = {"label": label.name}
        if self.key is not None:
            rules["key"] = [self.key]
        fill = {name: each.fill for name, each in self.decisions.items() if each.fill is not None}
        if fill := {name: each for name, each in fill.items() if name not in self.skipped}:
            rules["fill"] = fill
        if label.classes is not None:
            rules["split_by"] = {"way": "stratified", "column": label.name}
            if label.column.is_number:
                rules["ranges"] = {label.name: [label.classes[0], label.classes[-1]]}
        if self.max_rejected:
            rules["max_rejected"] = self.max_rejected
        return rules

    @property
    def rejected(self) -> int:
        """The records read of which ``prepare`` stores none.

        A class is no word that means a missing date, because ``nulls`` are those of all columns.
        """
        dates = sum(count for word, count in self._words_among_dates() if self._is_class(word))
        return self.label.column.missing + self.sample.rejected + dates

    @property
    def max_rejected(self) -> int:
        """How many records ``prepare`` may leave out: 0 if they are more than ``MOST_REJECTED``."""
        if self.rejected > MOST_REJECTED * (self.sample.records + self.sample.rejected):
            return 0
        if self.sample.is_whole:
            return self.rejected
        # Other records may have more of them, and other words among their dates.
        words = sum(count for word, count in self._words_among_dates() if not self._is_class(word))
        times = self.sample.total / self.sample.records
        return ceil(_MARGIN * times * (self.rejected + words))

    def _words_among_dates(self) -> Iterator[tuple[str, int]]:
        """The words instead of a date, and how many records have each."""
        for name, each in self.decisions.items():
            if name not in self.skipped:
                yield from each.nulls.items()

    def _is_class(self, word: str) -> bool:
        return word in self.label.column.counts


@dataclass(frozen=True, kw_only=True)
class OutputPlace:
    """The name of a pipeline, the folder of its DAG, and the URL of its data."""

    name: str
    folder: Path
    url: str

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def below(self) -> Path | None:
        """The path of the data below the folder of the DAG, if it is there."""
        path = Path(unquote(self.url.removeprefix("file://")))
        is_below = self.url.startswith("file://") and path.is_relative_to(self.folder)
        return path.relative_to(self.folder) if is_below and path.exists() else None

    def data(self) -> tuple[Expression, Expression]:
        """Where the data are, and their URL, as code."""
        if self.below is None:
            return Expression(literal(self.url)), Expression("DATA")
        parts = " / ".join(map(literal, self.below.parts))
        return Expression(f"Path(__file__).parent / {parts}"), Expression("DATA.as_uri()")

    @property
    def ignored(self) -> Path:
        """Airflow's list of files in the folder that are no DAG files."""
        return self.folder / ".airflowignore"

    @property
    def is_in_project(self) -> bool:
        """Whether the folder is a project's ``dags``, whose tests are next to it."""
        return self.folder.name == "dags"

    @property
    def hidden(self) -> list[str]:
        """The lines of ``ignored``."""
        return ["models/"] if self.is_in_project else ["models/", "tests/"]

    @property
    def models(self) -> Path:
        """The folder of modules, relative to the parent of that of the tests."""
        return Path(self.folder.name if self.is_in_project else "", "models")

    def files(self) -> dict[str, Path]:
        """The paths of the files, by their templates' kinds."""
        project = self.folder.parent if self.is_in_project else self.folder
        return {
            "dag": self.folder / f"{self.name}.py",
            "module": self.folder / "models" / f"{self.name}.py",
            "test": project / "tests" / f"test_{self.name}.py",
        }


def of_columns(place: OutputPlace, columns: Columns) -> dict[str, str]:
    """The texts of the files of a pipeline for a table or JSON lines."""
    label, texts = columns.label, columns.of(Use.TEXT)
    numbers, categories = columns.of(Use.NUMBER), columns.of(Use.CATEGORY)
    is_text = len(texts) == 1 and not numbers and not categories
    groups = {"numbers": numbers, "categories": categories, "texts": () if is_text else texts}
    facts = {name for name, each in groups.items() if each} | _facts(label)
    facts |= {"text", "plain"} if is_text else {"table"}
    facts |= {"columns"} | ({"words"} if facts & {"categories", "texts"} else set())
    facts |= {"times"} if any(columns.decisions[name].is_time for name in numbers) else set()
    values = {
        **_values(label),
        "inputs": _inputs(groups),
        "label": _assigned("LABEL", label.name),
        **{name: _assigned(name.upper(), each) for name, each in groups.items()},
        "text": _assigned("TEXT", texts[0]) if is_text else "",
        "length": str(_length(columns.sample.columns[texts[0]])) if is_text else "",
        "words": _all_words(groups),
        "invented": _invented(label),
    }
    files = _files(place, "text" if is_text else "table", values, facts)
    source, rules = columns.source(), columns.rules()
    return {"dag": _dag(place, label, source, rules, columns.sample.total), **files}


def of_images(place: OutputPlace, sample: ImageSample) -> dict[str, str]:
    """The texts of the files of a pipeline for images."""
    classes = list(sample.counts)
    task = Task.BINARY if len(classes) == 2 else Task.SEVERAL
    share = max(sample.counts.values()) / sample.records
    names = SampledColumn("label", pa.chunked_array([classes], pa.string()))
    label = Label(column=names, task=task, classes=classes, share=share)
    values = {**_values(label), "invented": "", "words": ""}
    facts = {"images", "plain", "classes", "classification", task.value}
    source = {name: each for name, each in sample.description.items() if name != "url"}
    rules = {"split_by": {"way": "stratified", "column": "label"}}
    dag = _dag(place, label, source, rules, sample.records)
    return {"dag": dag, **_files(place, "images", values, facts)}


def _files(
    place: OutputPlace, kind: str, values: Mapping[str, str], facts: set[str]
) -> dict[str, str]:
    models = " / ".join(map(literal, place.models.parts))
    about = {"name": place.name, "title": place.title, "models": models}
    return {
        "module": filled(f"{kind}.py", {**about, **values}, facts),
        "test": filled("test.py", {**about, **values}, facts),
    }


def _facts(label: Label) -> set[str]:
    facts = {label.task.value}
    facts |= {"classes", "classification"} if label.classes is not None else set()
    return facts | ({"numbered"} if label.is_numbered else set())


def _values(label: Label) -> dict[str, str]:
    metrics = '["accuracy"]'
    if label.task is Task.REGRESSION:
        metrics = '["mean_absolute_error", keras.metrics.R2Score()]'
    return {
        "y": _target(label),
        "output": _OUTPUTS[label.task],
        "loss": _LOSSES[label.task],
        "metrics": metrics,
        "rate": "10",
        "classes": _assigned("CLASSES", tuple(label.classes or ())),
        "mean": repr(label.mean),
        "deviation": repr(label.deviation),
    }


def _assigned(name: str, value: Any) -> str:
    """The literal on the right of ``name = ``."""
    return literal(value, before=len(name) + 3)


def _target(label: Label) -> str:
    if label.classes is None:
        return "tf.cast(features[LABEL], tf.float32)[:, tf.newaxis]"
    if label.is_numbered:
        return "classes"
    if not label.column.is_text and not label.column.is_integer:
        return "tf.cast(features[LABEL], tf.int64)"
    return "features[LABEL]"


def _invented(label: Label) -> str:
    """How the generated test makes labels of ``number``."""
    if label.classes is None:
        return "module.MEAN + module.DEVIATION * (number - 4.5) / 3"
    if label.is_numbered:
        return "np.array(module.CLASSES)[number]"
    return "number"


def _inputs(groups: Mapping[str, Sequence[str]]) -> str:
    words = {"numbers": "scaled numbers", "categories": "one-hot words", "texts": "hashed words"}
    used = [words[name] for name, each in groups.items() if each]
    return " and ".join([", ".join(used[:-1]), used[-1]] if len(used) > 1 else used)


def _all_words(groups: Mapping[str, Sequence[str]]) -> str:
    """The columns of words, as the generated test names them."""
    used = [f"module.{name.upper()}" for name in ("categories", "texts") if groups[name]]
    return used[0] if len(used) == 1 else f"({', '.join(f'*{each}' for each in used)})"


def _length(texts: SampledColumn) -> int:
    counts = pc.list_value_length(pc.utf8_split_whitespace(texts.known))
    length = pc.quantile(counts, _LENGTH_QUANTILE)[0].as_py()
    return max(1, min(_MOST_WORDS, round(length)))


def _dag(
    place: OutputPlace,
    label: Label,
    source: Mapping[str, Any],
    rules: Mapping[str, Any],
    records: int,
) -> str:
    path, url = place.data()
    described = {"kind": source["kind"], "url": url, **source}
    prepare = call("prepare", [("", described), *rules.items()], indent=4, before=len("data = "))
    evaluate = "evaluate(model, data)"
    if label.classes is None:
        evaluate = 'evaluate(model, data, metric="r2_score")'
    steps = max(1, round(0.7 * records / _BATCH))
    return filled(
        "dag.py",
        {
            "name": place.name,
            "title": place.title,
            "what": _KINDS[source["kind"]],
            "data": path.code,
            "prepare": prepare,
            "evaluate": evaluate,
            "share": f"{100 * label.share:.0f}",
            "epochs": str(min(_MOST_EPOCHS, max(_LEAST_EPOCHS, -(-_STEPS // steps)))),
            # A little more than a model reaches that learns nothing, of a number or of a class.
            "threshold": repr(round(min(label.share + 0.01, 0.99), 2)),
        },
        _facts_of_dag(place, label),
    )


_KINDS = {
    "csv": "a table in CSV",
    "parquet": "a table in Parquet",
    "jsonl": "JSON lines",
    "images": "a folder of images for each class",
}


def _facts_of_dag(place: OutputPlace, label: Label) -> set[str]:
    return {
        "regression" if label.classes is None else "classification",
        *(["relative"] if place.below is not None else []),
    }


def write(place: OutputPlace, texts: Mapping[str, str]) -> list[Path]:
    """Write the files, and hide the modules from Airflow's parser.

    Returns:
        Their paths, relative to the current folder.

    Raises:
        FileExistsError: one exists.
    """
    files = place.files()
    written = {files[kind]: text for kind, text in texts.items()}
    if not place.ignored.exists():
        written[place.ignored] = "".join(f"{each}\n" for each in place.hidden)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return [Path(os.path.relpath(path)) for path in written]
