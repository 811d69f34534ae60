"""``python -m devtools.pages``: write docs/options.md and docs/steps.md, and collect all pages.

Pages link to files all over the repository. MkDocs has one folder, and checks the links within it:
so the pages, and the files to which they link, are copied to one folder with the same paths.
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Any

from aerotrain.contract.gate import Rule
from aerotrain.contract.options import Section, options_of
from aerotrain.contract.preparing import PlanArguments, PredictArguments
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.contract.steps import EvaluateArguments, ExportArguments, ServeCheckArguments
from aerotrain.contract.validation import Validated, default_of, field_type
from aerotrain_airflow import steps
from aerotrain_airflow.params import OPTIONS, training_params
from aerotrain_airflow.settings import Settings

#: The folder that ``mkdocs.yml`` names.
PAGES = Path(".site") / "pages"

_PATTERNS = ("*.md", "docs/*.md", "benchmarks/README.md", "deploy/README.md")

_LINK = re.compile(r"\]\(([^)\s#]+)")

#: The functions of a DAG file, each with the class that has its other arguments.
_STEPS: Mapping[str, tuple[Callable[..., Any], type[Validated] | None]] = {
    "prepare": (steps.prepare, PlanArguments),
    "train": (steps.train.__call__, None),
    "train.partial": (steps.train.partial, None),
    "evaluate": (steps.evaluate, EvaluateArguments),
    "at_least": (steps.at_least, None),
    "at_most": (steps.at_most, None),
    "better_than_trivial": (steps.better_than_trivial, None),
    "no_worse": (steps.no_worse, Rule),
    "bucket": (steps.bucket, None),
    "approve": (steps.approve, None),
    "export": (steps.export, ExportArguments),
    "serve_check": (steps.serve_check, ServeCheckArguments),
    "promote": (steps.promote, None),
    "rollback": (steps.rollback, None),
    "predict": (steps.predict, PredictArguments),
    "training_params": (training_params, None),
}


def collect(root: Path, pages: Path) -> None:
    """Replace the folder ``pages`` by the documentation of the clone at ``root``."""
    shutil.rmtree(pages, ignore_errors=True)
    for path in sorted({*_pages(root), *_linked(root)}):
        target = pages / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def _pages(root: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        yield from root.glob(pattern)


def _linked(root: Path) -> Iterator[Path]:
    """The files to which pages link."""
    for page in _pages(root):
        for target in _LINK.findall(page.read_text()):
            path = (page.parent / target).resolve()
            if "://" not in target and path.is_file():
                yield path


def steps_page() -> str:
    """The text of docs/steps.md: the steps of a DAG file, each with all of its arguments."""
    lines = [
        "# Steps",
        "",
        "The functions of a DAG file, from `aerotrain_airflow.steps`, each with all of its",
        "arguments; `training_params` is in `aerotrain_airflow.params`. Values that may differ",
        "from run to run are params: [options.md](options.md) lists them. `make docs` writes this",
        "page.",
    ]
    for name, (function, owner) in _STEPS.items():
        named = list(signature(function).parameters.values())
        shown = [each for each in named if each.name != "self"]
        lines += ["", f"## {name}", "", f"`{name}({', '.join(map(_shown, shown))})`", ""]
        lines += [_markdown(function), ""]
        if owner is not None:
            lines += _arguments_table(owner, {each.name for each in shown})
    return "\n".join(lines).rstrip() + "\n"


def _shown(parameter: Parameter) -> str:
    """A parameter as in a call, with its default."""
    if parameter.kind in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL):
        return "…"
    if parameter.default is Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def _arguments_table(owner: type[Validated], named: Collection[str]) -> list[str]:
    """What the docstring of a class of arguments says, and those that are not ``named``."""
    options = options_of(owner)
    head = ["| argument | value | default | meaning |", "|---|---|---|---|"]
    lines = ["### All arguments", "", _markdown(owner), "", *head]
    for each in fields(owner):  # type: ignore[arg-type]
        if each.name not in {*named, "kind"}:
            help_ = options[each.name].option.full_help if each.name in options else ""
            default = "" if default_of(each) is MISSING else f"`{_as_json(default_of(each))}`"
            values = field_type(each).expected()
            lines.append(f"| `{each.name}` | {values} | {default} | {help_} |")
    return [*lines, ""]


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)


def _markdown(documented: Any) -> str:
    """The docstring of a function or a class as Markdown."""
    text = getdoc(documented) or ""
    text = re.sub(r"^(Returns|Raises):\n +", r"\1: ", text, flags=re.MULTILINE)
    return text.replace("``", "`").replace("::\n", ":\n")


_OF_RETENTION = ("Params of the DAG `retention`, and flags of `aerotrain retention`.", "")


def options_page() -> str:
    """The text of docs/options.md: every option and setting, with its default and its meaning."""
    lines = [
        "# Options",
        "",
        "Params of every training pipeline: fields of the trigger form, keys of `conf` over REST,",
        "and keyword arguments of `training_params`, which sets a pipeline's own defaults. Those",
        "marked † are set in the DAG file alone, as keyword arguments of `prepare` and `train`.",
        "Any other option may be an argument of its step, too, in place of the param:",
        '`train("flats", data, epochs=5)`, `prepare("flats", shards=8)`,',
        "`evaluate(model, data, threshold=0.8)`. All are flags of the commands.",
        "`make docs` writes this page.",
    ]
    declared = {**OPTIONS, **options_of(RetentionPolicy)}
    for section in Section:
        lines += [
            "",
            f"## {section}",
            "",
            *(_OF_RETENTION if section is Section.RETENTION else ()),
            "| option | value | default | meaning |",
            "|---|---|---|---|",
        ]
        for name, each in declared.items():
            if each.option.section is section:
                mark = "" if each.option.in_form else " †"
                default = json.dumps(each.default, ensure_ascii=False)
                help_ = each.option.full_help.replace("\n", "<br>").replace("|", "\\|")
                lines.append(f"| `{name}`{mark} | {each.type.expected()} | `{default}` | {help_} |")
    lines += [
        "",
        "## Settings",
        "",
        "Of the administrator, in the section `[aerotrain]` of `airflow.cfg` or as environment",
        "variables `AIRFLOW__AEROTRAIN__STORE` and so on. Some concern one launcher only.",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for setting in fields(Settings):
        default = setting.metadata["default"]
        shown = "" if callable(default) else f"`{json.dumps(default)}`"
        lines.append(f"| `{setting.name}` | {shown} | {setting.metadata['description']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path("docs/options.md").write_text(options_page())
    Path("docs/steps.md").write_text(steps_page())
    collect(Path.cwd(), PAGES)
