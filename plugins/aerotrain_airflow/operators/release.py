"""The operators that decide what is served: the approval by a person, promotion and rollback."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import prefix_of
from aerotrain.contract.layout import CARD, VERSIONS, path_segment
from aerotrain.serving.alias import Alias, OlderError, promote, rollback
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.operators.description import place_of
from aerotrain_airflow.operators.links import browsable
from aerotrain_airflow.operators.task_try import translated
from aerotrain_airflow.settings import Settings


class ModelApprovalOperator(ApprovalOperator):
    """Wait until a person approves a model; Airflow's UI lists it among the required actions.

    ``metrics`` is the output of the task ``evaluation``, which evaluates it. Other arguments are
    those of ``ApprovalOperator``, such as ``fail_on_reject``, ``assigned_users``,
    ``response_timeout`` and ``notifiers``: a rejected model skips later tasks, unless
    ``fail_on_reject`` is set.
    """

    template_fields: Sequence[str] = ("subject", "metrics")

    def __init__(self, *, metrics: Any, evaluation: str, **kwargs: Any) -> None:
        kwargs.setdefault("subject", "Export the model of {{ dag.dag_id }}, run {{ run_id }}?")
        super().__init__(**kwargs)
        self.metrics = metrics
        self.evaluation = evaluation

    def execute(self, context: Context) -> Any:
        """Ask, and wait for the answer."""
        settings = Settings.read()
        task: Any = context["dag"].get_task(self.evaluation)
        card = f"{prefix_of(**place_of(task, context['ti'], settings))}/{CARD}"
        self.body = body_of(self.metrics, browsable(card, context["ti"].dag_id, settings))
        return super().execute(context)


def body_of(metrics: Mapping[str, float], card: str) -> str:
    """The question as Markdown: a table of the metrics, and the address of the card."""
    rows = "\n".join(f"| {name} | {value:.6g} |" for name, value in metrics.items())
    table = f"| metric | value |\n|---|---|\n{rows}"
    return f"[The card]({card}) shows the verdicts, slices and worst records.\n\n{table}"


class PromoteOperator(BaseOperator):
    """Serve a version of a pipeline.

    Args:
        version: the URL of a version, as ``export`` returns it; or its number, of the DAG
            ``pipeline``.
        pipeline: the id of the DAG that exported it, by default this one.
        metrics: the metrics with which it was accepted, for the history.
        reason: why, for the history.
        older: whether a version may be older than the served one.

    All of these are templated. A version that this run exported is of the data until the end of the
    run's data interval, its logical date or, of a run without a date, the time from which it could
    run. If that is before the date of the served version, as in a backfill, the task is skipped. A
    version that a person promoted has the date of its promotion. An event of each asset in
    ``outlets`` has the version, its URL and the metrics, so that other DAGs can start when a model
    is served.

    Raises:
        AirflowFailException: the version is not complete, or older than the served one.
        AirflowSkipException: it is of older data than the served one.
    """

    template_fields: Sequence[str] = ("version", "pipeline", "metrics", "reason", "older")

    def __init__(
        self,
        *,
        version: Any,
        pipeline: Any = None,
        metrics: Any = None,
        reason: Any = "",
        older: Any = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.pipeline = pipeline
        self.metrics = metrics
        self.reason = reason
        self.older = older

    def execute(self, context: Context) -> str:
        """Promote it; returns the URL of the version that is served now."""
        with translated():
            settings = Settings.read()
            folder, _, number = str(self.version).rstrip("/").rpartition("/")
            url = folder or versions_of(self.pipeline, context, settings)
            if not number.isdigit():
                given = (
                    "no version is given" if self.version is None else f"{self.version!r} is none"
                )
                raise FinalError(f"{given}: give the number of a version, or its URL")
            until = data_until(context) if folder else None
            try:
                alias = promote(
                    store_of(url, settings),
                    int(number),
                    by=changed_by(context),
                    reason=self.reason or "",
                    metrics=dict(self.metrics or {}),
                    until=until,
                    older=bool(self.older),
                )
            except OlderError as error:
                if until is None:
                    raise
                self.log.info("skipped: %s", error)
                raise AirflowSkipException(f"skipped: {error}") from None
        return _served(self, context, url, alias)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The version that is served now, as OpenLineage's provider asks for it."""
        from aerotrain_airflow.tracking.lineage import lineage_of_alias  # it needs the extra

        return lineage_of_alias(self, task_instance)


class RollbackOperator(BaseOperator):
    """Serve the version that was served before the present one was promoted.

    ``pipeline`` and ``reason`` are as for ``PromoteOperator``.

    Raises:
        AirflowFailException: there is no such version.
    """

    template_fields: Sequence[str] = ("pipeline", "reason")

    def __init__(self, *, pipeline: Any = None, reason: Any = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.reason = reason

    def execute(self, context: Context) -> str:
        """Roll back; returns the URL of the version that is served now."""
        with translated():
            settings = Settings.read()
            url = versions_of(self.pipeline, context, settings)
            store = store_of(url, settings)
            alias = rollback(store, by=changed_by(context), reason=self.reason or "")
        return _served(self, context, url, alias)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The version that is served now, as OpenLineage's provider asks for it."""
        from aerotrain_airflow.tracking.lineage import lineage_of_alias  # it needs the extra

        return lineage_of_alias(self, task_instance)


def versions_of(pipeline: str | None, context: Context, settings: Settings) -> str:
    """The URL of the folder of the versions of a DAG, by default of the running one."""
    dag = pipeline or context["ti"].dag_id
    return f"{settings.store}/{path_segment(dag)}/{VERSIONS}"


def data_until(context: Context) -> datetime:
    """The time until which the data of a run are."""
    run: Any = context["dag_run"]
    until: datetime = run.data_interval_end or run.logical_date or run.run_after
    return until


def changed_by(context: Context) -> str:
    """Who changed the alias, for the history: the run, and the user who triggered it."""
    run: Any = context["dag_run"]
    user = getattr(run, "triggering_user_name", None)
    return f"{run.dag_id}/{run.run_id}" + (f" of {user}" if user else "")


def _served(task: BaseOperator, context: Context, url: str, alias: Alias) -> str:
    """Say which version is served now, also in the events of the task's assets; returns its URL."""
    served, change = f"{url}/{alias.version}", alias.history[-1]
    for asset in task.outlets:
        extra: dict[str, Any] = {"version": alias.version, "url": served}
        extra |= {"action": change.action, "metrics": change.metrics}
        context["outlet_events"][asset].extra |= extra
    print(f"served: {served}", flush=True)
    return served
