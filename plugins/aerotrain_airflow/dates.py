"""The date of a run in a template, and the folders of a table that a run reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context
from jinja2 import Environment, UndefinedError
from jinja2.meta import find_undeclared_variables

from aerotrain.contract.errors import SpecError

#: The names in templates that only a run with a logical date has:
#: https://airflow.apache.org/docs/apache-airflow/stable/templates-ref.html
DATES = frozenset(
    {
        "logical_date",
        "ds",
        "ds_nodash",
        "ts",
        "ts_nodash",
        "ts_nodash_with_tz",
        "data_interval_start",
        "data_interval_end",
        "prev_data_interval_start_success",
        "prev_data_interval_end_success",
    }
)


@contextmanager
def date_required(content: Any, context: Context, env: Environment) -> Iterator[None]:
    """Explain why a template could not be rendered, if the reason is that the run has no date.

    ``env`` has the filters of the template.

    Raises:
        SpecError: the template needs a date, and the run has none.
    """
    try:
        yield
    except (KeyError, UndefinedError) as error:
        if not isinstance(content, str) or context["dag_run"].logical_date is not None:
            raise
        names = sorted(DATES & find_undeclared_variables(env.parse(content)))
        if not names:
            raise
        needed = " and ".join(f"`{name}`" for name in names)
        raise SpecError(
            f"this run has no logical date, and {content!r} needs {needed}: trigger the DAG with a "
            "logical date, in the form or as `airflow dags trigger --logical-date 2026-01-31 "
            f'{context["dag_run"].dag_id}` or `{{"logical_date": "2026-01-31T00:00:00Z"}}` over '
            "REST"
        ) from error


@dataclass(frozen=True)
class FoldersOfRun:
    """The URLs of the folders of a table that a run reads, such as ``dt=2026-01-31``.

    They are those with new files, if the run was started by ``NewFiles`` (``new_files.py``), and
    otherwise the folder of the run's date. Airflow calls ``resolve``, as of ``RunParam``::

        prepare({"kind": "parquet", "url": FoldersOfRun("s3://bucket/sales", "dt={{ ds }}")})
    """

    table: str
    folder: str

    def resolve(self, context: Context) -> list[str]:
        """The URLs, sorted.

        Raises:
            SpecError: the run has neither new files nor a date.
        """
        table = self.table.rstrip("/")
        events = [event for each in context["triggering_asset_events"].values() for event in each]
        payloads = [event.extra.get("payload") for event in events]
        new = {
            folder
            for payload in payloads
            if isinstance(payload, dict) and payload.get("url") == table
            for folder in payload["folders"]
        }
        if not new:
            new = {context["task"].render_template(self.folder, context)}
        return [f"{table}/{folder}/" if folder else f"{table}/" for folder in sorted(new)]

    def __str__(self) -> str:
        return f"{self.table}/{self.folder}/"
