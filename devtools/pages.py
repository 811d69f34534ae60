"""``python -m devtools.pages``: write docs/options.md, and collect all pages for MkDocs.

Pages link to files all over the repository. MkDocs has one folder, and checks the links within it:
so the pages, and the files to which they link, are copied to one folder with the same paths.
"""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from aerotrain.contract.options import JSON_TYPES, Declared, Section, options_of
from aerotrain.contract.retention import RetentionPolicy
from aerotrain_airflow.params import OPTIONS
from aerotrain_airflow.settings import Settings

#: The folder that ``mkdocs.yml`` names.
PAGES = Path(".site") / "pages"

_PATTERNS = ("*.md", "docs/*.md", "benchmarks/README.md", "deploy/README.md")

_LINK = re.compile(r"\]\(([^)\s#]+)")

#: The modules and classes that a DAG file and a module use, whose docstrings are the reference.
_REFERENCE = """\
# Reference

What a DAG file imports, and the arguments of each step. The options of a run are in
[docs/options.md](docs/options.md).

::: aerotrain_airflow.steps

::: aerotrain_airflow.params.training_params

::: aerotrain.contract.preparing.PlanArguments

::: aerotrain.contract.steps.EvaluateArguments

::: aerotrain.contract.steps.ExportArguments

::: aerotrain.layers.ShardedEmbedding
"""


def collect(root: Path, pages: Path) -> None:
    """Replace the folder ``pages`` by the documentation of the clone at ``root``."""
    shutil.rmtree(pages, ignore_errors=True)
    for path in sorted({*_pages(root), *_linked(root)}):
        target = pages / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (pages / "reference.md").write_text(_REFERENCE)


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


_OF_RETENTION = ("Params of the DAG `retention`, and flags of `aerotrain retention`.", "")


def options_page() -> str:
    """The text of docs/options.md: every option and setting, with its default and its meaning."""
    lines = [
        "# Options",
        "",
        "Params of every training pipeline: fields of the trigger form, keys of `conf` over REST,",
        "and keyword arguments of `training_params`, which sets a pipeline's own defaults. Those",
        "marked † are set in the DAG file alone, as keyword arguments of `prepare` and `train`.",
        "Any other option of a training may be an argument of `train`, too, in place of the param:",
        '`train("flats", data, epochs=5)`. All are flags of the commands.',
        "`make docs` writes this page.",
    ]
    declared = {**OPTIONS, **options_of(RetentionPolicy)}
    for section in Section:
        lines += [
            "",
            f"## {section}",
            "",
            *(_OF_RETENTION if section is Section.RETENTION else ()),
            "| option | type | default | meaning |",
            "|---|---|---|---|",
        ]
        for name, each in declared.items():
            if each.option.section is section:
                mark = "" if each.option.in_form else " †"
                default = json.dumps(each.default, ensure_ascii=False)
                help_ = each.option.full_help.replace("\n", "<br>").replace("|", "\\|")
                lines.append(f"| `{name}`{mark} | {_values(each)} | `{default}` | {help_} |")
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


def _values(declared: Declared) -> str:
    """The type of an option's value, and its bounds."""
    option = declared.option
    if option.choices:
        return ", ".join(f"`{each}`" for each in option.choices)
    bounds = {"≥": option.minimum, ">": option.above, "≤": option.maximum}
    said = [f"{sign} {value:g}" for sign, value in bounds.items() if value is not None]
    or_null = ["or null"] if declared.type.optional else []
    return ", ".join([JSON_TYPES[declared.type.kind], *said, *or_null])


if __name__ == "__main__":
    Path("docs/options.md").write_text(options_page())
    collect(Path.cwd(), PAGES)
