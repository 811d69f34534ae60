"""The date of a run in a template, and the folders of a table that a run reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow.sdk import Context
from jinja2 import UndefinedError

from aerotrain.contract.errors import SpecError


@contextmanager
def date_required(context: Context) -> Iterator[None]:
    """Explain why templates could not be rendered, if the reason may be that the run has no date.

    Raises:
        SpecError: a template needs something that this run lacks, which has no logical date.
    """
    try:
        yield
    except (KeyError, UndefinedError) as error:
        if context["dag_run"].logical_date is not None:
            raise
        raise SpecError(
            f"a template cannot be rendered ({error}), and this run has no logical date, of which "
            "`ds`, `ts`, `data_interval_start` and others are made: trigger the DAG with one, in "
            "the form or as `airflow dags trigger --logical-date 2026-01-31 "
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
        """The URLs, sorted. A run without new files and without a date has none of ``{{ ds }}``."""
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
