"""The three files of a pipeline: what fills their templates, by what the data look like."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from aerotrain.data.sources.batch import Rejected
from aerotrain.scaffold.columns import ColumnDecision, SampledColumn, Use
from aerotrain.scaffold.label import Label, Task
from aerotrain.scaffold.sample import ImageSample, SourceSample
from aerotrain.scaffold.templates import Code, call, filled, literal

#: The steps that a small model needs, records of a step, and the bounds of epochs.
_STEPS, _BATCH, _LEAST_EPOCHS, _MOST_EPOCHS = 300, 32, 5, 60

#: The share of records without a number from which its absence is an input.
_OFTEN = 0.005

#: Records of which the test split, a fifth, is judged although it has fewer records than rules ask
#: for by default; and of which it cannot be judged.
_FEW_TO_JUDGE, _TOO_FEW_TO_JUDGE = 750, 100

#: The share of records up to which those that do not fit are left out. Of more, a user decides.
MOST_REJECTED = 0.01

#: For each task: the last layers of the model, its loss, its metrics, and how many different
#: labels the generated test has.
_TASKS = {
    Task.BINARY: (
        'keras.layers.Dense(1, activation="sigmoid"),',
        '"binary_crossentropy"',
        '["accuracy"]',
        "2",
    ),
    Task.SEVERAL: (
        'keras.layers.Dense(len(CLASSES), activation="softmax"),',
        '"sparse_categorical_crossentropy"',
        '["accuracy"]',
        "len(module.CLASSES)",
    ),
    Task.REGRESSION: (
        "keras.layers.Dense(1),\n            keras.layers.Rescaling(DEVIATION, offset=MEAN),",
        '"mean_squared_error"',
        '["mean_absolute_error", keras.metrics.R2Score()]',
        "10",
    ),
}

_KINDS = {
    "csv": "a table in CSV",
    "parquet": "a table in Parquet",
    "jsonl": "JSON lines",
    "images": "a folder of images for each class",
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a table or of JSON lines: what each is used for, and which is the label.

    ``rejected`` are the records that ``prepare`` will not store, of those that were read.
    """

    sample: SourceSample
    decisions: Mapping[str, ColumnDecision]
    label: Label
    rejected: Sequence[Rejected] = ()

    def of(self, use: Use) -> tuple[str, ...]:
        """The columns with that use, except the label."""
        return tuple(
            name
            for name, decision in self.decisions.items()
            if decision.use is use and name != self.label.name
        )

    @property
    def key(self) -> str | None:
        """The column that identifies a record, known only where all records were read."""
        unique = (name for name in self.of(Use.KEY) if self.sample.columns[name].is_unique)
        return next(unique, None) if self.sample.is_whole else None

    @property
    def _used(self) -> dict[str, ColumnDecision]:
        """The columns that are read."""
        return {
            name: decision
            for name, decision in self.decisions.items()
            if name == self.key or decision.use not in (Use.KEY, Use.LEFT_OUT)
        }

    def source(self) -> dict[str, Any]:
        """The description of the source, without its URL."""
        described = dict(self.sample.description)
        del described["url"]
        given, label = described.pop("types", {}), self.label
        types = {name: decision.type or given.get(name) for name, decision in self._used.items()}
        types[label.name] = _type_of_label(label)
        skip = [name for name in self.sample.columns if name not in self._used]
        options = {
            "skip": [*described.get("skip", []), *skip],
            "types": {name: kind for name, kind in types.items() if kind},
        }
        return {**described, **{name: value for name, value in options.items() if value}}

    def rules(self) -> dict[str, Any]:
        """The arguments of ``prepare`` besides the source."""
        label = self.label
        rules: dict[str, Any] = {"label": label.name}
        if self.key is not None:
            rules["key"] = [self.key]
        if fill := {
            n: decision.fill for n, decision in self._used.items() if decision.fill is not None
        }:
            rules["fill"] = fill
        if label.classes is not None:
            rules["split_by"] = {"way": "stratified", "column": label.name}
            if label.column.is_number:
                rules["ranges"] = {label.name: [label.classes[0], label.classes[-1]]}
        if self.max_rejected:
            rules["max_rejected"] = self.max_rejected
        return rules

    @property
    def missing(self) -> tuple[str, ...]:
        """The numbers that are missing so often that a model should know of it."""
        return tuple(
            name
            for name in self.of(Use.NUMBER)
            if self.decisions[name].fill is None
            and self.sample.columns[name].missing >= _OFTEN * self.sample.records
        )

    @property
    def max_rejected(self) -> int:
        """How many records ``prepare`` may leave out."""
        return most_rejected(self.sample, self.rejected)


def most_rejected(sample: SourceSample | ImageSample, rejected: Sequence[Rejected]) -> int:
    """How many records ``prepare`` may leave out, if all were read: 0 if they are too many."""
    count = len(rejected)
    return count if sample.is_whole and count <= MOST_REJECTED * sample.records else 0


def _type_of_label(label: Label) -> str | list[Any] | None:
    """The type of a label whose values are not read as they are stored."""
    if label.column.is_text:
        return list(label.classes or ())
    return f"float32 {label.column.form}" if label.column.form else None


@dataclass(frozen=True, kw_only=True)
class OutputPlace:
    """The name of a pipeline, the folder of its DAG, and the URL of its data."""

    name: str
    folder: Path
    url: str

    def data(self) -> tuple[str, str]:
        """Where the data are, and their URL, as code; relative if they are below the DAG."""
        path = Path(unquote(self.url.removeprefix("file://")))
        is_below = self.url.startswith("file://") and path.is_relative_to(self.folder)
        if not is_below or not path.exists():
            return literal(self.url), "DATA"
        parts = " / ".join(map(literal, path.relative_to(self.folder).parts))
        return f"Path(__file__).parent / {parts}", "DATA.as_uri()"

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
    groups = {
        "numbers": columns.of(Use.NUMBER),
        "categories": columns.of(Use.CATEGORY),
        "texts": columns.of(Use.TEXT),
    }
    values = {
        "label": _assigned("LABEL", columns.label.name),
        **{name: _assigned(name.upper(), names) for name, names in groups.items() if names},
        "missing": _assigned("MISSING", columns.missing) if columns.missing else "",
        "times": any(columns.decisions[name].is_time for name in groups["numbers"]),
    }
    source, rules = columns.source(), columns.rules()
    return _texts(place, "table", columns.label, source, rules, columns.sample.records, values)


def of_images(place: OutputPlace, sample: ImageSample) -> dict[str, str]:
    """The texts of the files of a pipeline for images."""
    classes = list(sample.counts)
    label = Label(
        column=SampledColumn("label", pa.chunked_array([classes], pa.string())),
        task=Task.BINARY if len(classes) == 2 else Task.SEVERAL,
        classes=classes,
        share=max(sample.counts.values()) / sample.records,
    )
    source = {name: value for name, value in sample.description.items() if name != "url"}
    rules: dict[str, Any] = {"split_by": {"way": "stratified", "column": "label"}}
    if most := most_rejected(sample, sample.rejected):
        rules["max_rejected"] = most
    return _texts(place, "images", label, source, rules, sample.records, {})


def _texts(
    place: OutputPlace,
    template: str,
    label: Label,
    source: Mapping[str, Any],
    rules: Mapping[str, Any],
    records: int,
    values: Mapping[str, Any],
) -> dict[str, str]:
    """The texts of the files, whose module is made of ``template`` with the further ``values``."""
    data, url = place.data()
    described = {"kind": source["kind"], "url": Code(url), **source}
    output, loss, metrics, different = _TASKS[label.task]
    few = ", least=10" if records < _FEW_TO_JUDGE else ""
    few += ', too_few="accept"' if records < _TOO_FEW_TO_JUDGE else ""
    epochs = ceil(_STEPS / max(1, round(0.7 * records / _BATCH)))
    values = {
        **values,
        template: True,
        "name": place.name,
        "title": place.name.replace("_", " ").capitalize(),
        "what": _KINDS[source["kind"]],
        "data": data,
        "relative": data.startswith("Path"),
        "prepare": call("prepare", described, rules, indent=4),
        "models": '"dags" / "models"' if place.is_in_project else '"models"',
        "y": _target(label),
        "output": output,
        "loss": loss,
        "metrics": metrics,
        "different": different,
        "invented": _invented(label),
        "numbered": label.is_numbered,
        "classes": _assigned("CLASSES", tuple(label.classes)) if label.classes else "",
        "regression": label.classes is None,
        "mean": label.mean,
        "deviation": label.deviation,
        "metric": "accuracy" if label.classes else "r2_score",
        "few": few,
        "share": f"{100 * label.share:.0f}",
        "epochs": min(_MOST_EPOCHS, max(_LEAST_EPOCHS, epochs)),
        "threshold": round(min(label.share, 0.99), 2),
    }
    templates = {"dag": "dag.py", "module": f"{template}.py", "test": "test.py"}
    return {kind: filled(template, values) for kind, template in templates.items()}


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
    return "np.array(module.CLASSES)[number]" if label.is_numbered else "number"


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
        written[place.ignored] = "".join(f"{line}\n" for line in place.hidden)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return [Path(os.path.relpath(path)) for path in written]
