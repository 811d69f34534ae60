"""``python -m devtools.site``: collect the pages of the documentation for MkDocs.

Pages link to files all over the repository. MkDocs has one folder, and checks the links within it:
so the pages, and the files to which they link, are copied to one folder with the same paths.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

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


if __name__ == "__main__":
    collect(Path.cwd(), PAGES)
