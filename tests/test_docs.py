"""The documentation names only files, modules, make targets and settings that exist.

Each test fails with the document and what is missing. ``docs/options.md`` is generated, and
``tests/test_options.py`` compares it; the files in ``benchmarks/results`` are records of runs.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from aerotrain.standalone.cli import COMMANDS
from aerotrain.standalone.other_commands import OTHERS
from aerotrain_airflow.settings import Settings
from devtools.pages import collect

ROOT = Path(__file__).parent.parent

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)

#: Other files that name paths of the repository in their comments.
TEXTS = sorted(
    path
    for pattern in ("Makefile", "*.yaml", ".ci/*", "deploy/*.yaml", "images/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix != ".lock"
)

#: The changelog also names what has been removed.
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]

#: The folders of this repository, and where Python finds its packages.
FOLDERS = sorted(path.name for path in ROOT.glob("[!.]*") if path.is_dir())
IMPORTED_FROM = (ROOT, ROOT / "tasks", ROOT / "plugins", ROOT / "tests")

#: Folders of the store, which the documentation writes like those of the code.
IN_STORE = {"quarantine/", "watched/"}

#: Files that the commands of the tutorial write.
WRITTEN = {"dags/churn.py", "dags/models/churn.py", "tests/test_churn.py"}

#: Words of other projects in code spans, which occur nowhere in this project's code.
FOREIGN = {
    "max_failures",
    "PearsonCorrelation",
    "statsd_datadog_enabled",
    "statsd_influxdb_enabled",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def per_page(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=name_of)


@cache
def files() -> frozenset[str]:
    """The paths of all files of the repository and of their folders, relative to its root."""
    found = {path for path in ROOT.glob("*") if path.is_file()} | {ROOT / ".ci" / "run"}
    for folder in FOLDERS:
        paths = (ROOT / folder).rglob("*")
        found |= {each for each in paths if each.is_file() and each.suffix != ".pyc"}
    parents = {parent for path in found for parent in path.relative_to(ROOT).parents}
    return frozenset(map(name_of, found)) | {parent.as_posix() for parent in parents}


@cache
def words() -> frozenset[str]:
    """Every identifier-like word of the code and of its configuration."""
    kinds = (".py", ".toml", ".yaml", ".example")
    sources = [ROOT / each for each in files() if each.endswith(kinds)]
    read = {*sources, ROOT / "Makefile"} - {Path(__file__)}
    text = "\n".join(path.read_text() for path in read)
    return frozenset(re.findall(r"\w+", text))


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def spans(page: Path) -> list[str]:
    """What the page has between single backticks, and each line of its console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return re.findall(r"`([^`]+)`", prose(page).replace("\n", " ")) + lines


def headings(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


def missing_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in headings(linked)):
            yield target


@per_page(PAGES)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    missing = list(missing_links(page))
    assert not missing, f"{name_of(page)} links to what does not exist: {missing}"


def missing_paths(page: Path) -> Iterator[str]:
    """Paths in code spans: from the root, or the end of a path, such as ``contract/job.py``."""
    for span in spans(page):
        if span in IN_STORE | WRITTEN or not re.fullmatch(
            r"[a-z0-9_.\-/]+(\.(py|md|yaml|toml|lock)|/)", span
        ):
            continue
        path = span.rstrip("/")
        if not any(each == path or each.endswith(f"/{path}") for each in files()):
            yield span


@per_page(CURRENT)
def test_every_path_in_a_page_exists(page: Path) -> None:
    missing = list(missing_paths(page))
    assert not missing, f"{name_of(page)} names files that do not exist: {missing}"


@per_page([*CURRENT, *TEXTS])
def test_every_path_from_the_root_exists(page: Path) -> None:
    pattern = rf"(?<![\w./$\-])(?:{'|'.join(FOLDERS)})/[\w./*\-]*[\w*]"
    found = re.findall(pattern, page.read_text())
    named = [each for each in found if "*" not in each and not each.endswith("/NAME")]
    missing = [each for each in named if each not in files() | WRITTEN]
    assert not missing, f"{name_of(page)} names files that do not exist: {missing}"


def file_of(dotted: str) -> Path | None:
    """The file of a module of ours, or None."""
    for root in IMPORTED_FROM:
        base = root.joinpath(*dotted.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py", base / "__main__.py"):
            if path.exists():
                return path
    return None


def is_defined(dotted: str) -> bool:
    """Whether it is a module of ours, or a name that a module of ours defines."""
    if file_of(dotted):
        return True
    module, _, name = dotted.rpartition(".")
    source = file_of(module)
    if source is None:
        return False
    defined: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {each.id for each in targets if isinstance(each, ast.Name)}
    return name in defined


@per_page(CURRENT)
def test_every_module_in_a_page_exists(page: Path) -> None:
    ours = r"aerotrain|aerotrain_airflow|benchmarks|devtools"
    pattern = rf"(?<![\w./\-])(?:{ours})(?:\.\w+)+(?![\w/])"
    found = {each for span in spans(page) for each in re.findall(pattern, span)}
    named = (each for each in sorted(found) if not each.endswith(".NAME"))
    missing = [each for each in named if not is_defined(each)]
    assert not missing, f"{name_of(page)} names modules that do not exist: {missing}"


@per_page(CURRENT)
def test_every_flag_of_a_command_exists(page: Path) -> None:
    options = (ROOT / "docs" / "options.md").read_text()
    frame = (ROOT / "benchmarks" / "report.py").read_text()  # flags of every benchmark
    missing = []
    for span in spans(page):
        command = re.search(r"python -m ((?:aerotrain|benchmarks|chaos|devtools)[\w.]*)(.*)", span)
        source = file_of(command[1]) if command else None
        if command is None or source is None:
            continue
        for flag in re.findall(r"--([a-z-]+)", command[2]):
            is_option = f"| `{flag.replace('-', '_')}`" in options
            if flag != "help" and f'"--{flag}"' not in source.read_text() + frame and not is_option:
                missing.append(f"{command[1]} --{flag}")
    assert not missing, f"{name_of(page)} names flags that do not exist: {missing}"


@per_page(CURRENT)
def test_every_command_of_aerotrain_exists(page: Path) -> None:
    missing = []
    for span in spans(page):
        for command, rest in re.findall(r"(?:^|/)aerotrain ([a-z]+)(.*)", span):
            flags = re.findall(r"--([a-z-]+)", rest)
            missing += [f"--{each}" for each in flags if each.replace("-", "_") not in words()]
            missing += [] if command in {*COMMANDS, *OTHERS} else [command]
    assert not missing, f"{name_of(page)} names what `aerotrain` does not have: {missing}"


@per_page([*CURRENT, *TEXTS])
def test_every_make_target_and_variable_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    known |= set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    is_page = page.suffix == ".md"
    commands = spans(page) if is_page else page.read_text().splitlines()
    start = r"(?:^|\s)" if is_page else r"`"
    missing = []
    for command in commands:
        for target, rest in re.findall(start + r"make ([a-z][a-z-]*)((?: [A-Z_]+=\S+)*)", command):
            named = [target, *re.findall(r"([A-Z_]+)=", rest)]
            missing += [each for each in named if each not in known]
    assert not missing, f"{name_of(page)} names make targets that do not exist: {missing}"


@per_page(CURRENT)
def test_every_identifier_in_a_page_occurs_in_the_code(page: Path) -> None:
    found = {span for span in spans(page) if re.fullmatch(r"[A-Za-z_]\w{3,}", span)}
    missing = sorted(each for each in found - words() - FOREIGN if "__" not in each)
    assert not missing, f"{name_of(page)} names what is nowhere in the code: {missing}"


@per_page([*CURRENT, *TEXTS])
def test_every_setting_exists(page: Path) -> None:
    settings = {each.name for each in fields(Settings)}
    found = re.findall(r"AIRFLOW__AEROTRAIN__([A-Z_]+)", page.read_text())
    found += re.findall(r"\[aerotrain\] ([a-z]+_[a-z_]+|\w+(?= =))", page.read_text())
    missing = [each for each in found if each.lower() not in settings]
    assert not missing, f"{name_of(page)} names settings that do not exist: {missing}"


@pytest.mark.process
def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    collect(ROOT, tmp_path / "pages")
    given = {"docs_dir": str(tmp_path / "pages"), "site_dir": str(tmp_path / "html")}
    build(load_config(str(ROOT / "mkdocs.yml"), **given, strict=True))  # raises Abort


LARGE = "A model of 200 MB"


def table_of_models() -> dict[str, dict[str, str]]:
    """The cells of the first table in docs/models.md, by row and strategy."""
    kinds, _, _ = (ROOT / "docs/models.md").read_text().partition(f"## {LARGE}")
    lines = [line for line in kinds.splitlines() if "|" in line]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    strategies = [name.strip("`") for name in header[1:]]
    return {row: dict(zip(strategies, cells, strict=True)) for row, *cells in rows}


def test_the_table_of_the_large_model_is_that_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks/results/models.json").read_text())["200 MB"]
    page = (ROOT / "docs/models.md").read_text()
    for strategy, measured in results.items():
        memory = ", ".join(f"{name} {each:,}" for name, each in measured["replicas"].items())
        cells = [f"`{strategy}`", memory, f"{measured['fit']:,}", str(measured["stall"])]
        assert f"| {' | '.join(cells)} |" in page, f"write the results of {strategy} into the page"


def test_the_table_of_models_is_that_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks/results/models.json").read_text())
    cells = table_of_models()
    shown = {
        row: {name: cell.strip("⁰¹²³⁴⁵⁶⁷⁸⁹ ") for name, cell in outcomes.items() if cell != "–"}
        for row, outcomes in cells.items()
    }
    measured = {
        row: {name: each["outcome"] for name, each in outcomes.items()}
        for row, outcomes in results.items()
        if row != "200 MB"
    }
    assert shown == measured, "write the results of benchmarks.model_table into docs/models.md"
    notes = set(
        re.findall(r"^([⁰¹²³⁴⁵⁶⁷⁸⁹]+) ", (ROOT / "docs/models.md").read_text(), re.MULTILINE)
    )
    for row, outcomes in cells.items():
        for strategy, cell in outcomes.items():
            if not cell.startswith(("equal", "–")):
                assert cell.split()[-1] in notes, f"{row}, {strategy}: {cell} is not explained"
