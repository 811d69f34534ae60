"""The operators that decide what is served: promotion and rollback."""

from collections.abc import Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import BaseOperator, Context

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.layout import VERSIONS, path_segment
from aerotrain.serving.alias import Alias, OlderError, promote, rollback
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.operators.task_try import translated
from aerotrain_airflow.settings import Settings


class AliasOperator(BaseOperator):
    """Changes which version of a pipeline is served; an event of each outlet says which one is."""

    def changed(self, context: Context, url: str, alias: Alias) -> str:
        """Say which version of the folder ``url`` is served now; returns its URL."""
        served, change = f"{url}/{alias.version}", alias.history[-1]
        for asset in self.outlets:
            extra: dict[str, Any] = {"version": alias.version, "url": served}
            extra |= {"action": change.action, "metrics": change.metrics}
            context["outlet_events"][asset].extra |= extra
        self.log.info("served: %s", served)
        return served

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The version that is served now, as OpenLineage's provider asks for it."""
        from aerotrain_airflow.tracking.lineage import lineage_of_alias  # it needs the extra

        return lineage_of_alias(self, task_instance)


class PromoteOperator(AliasOperator):
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
            run: Any = context["dag_run"]
            until = (run.data_interval_end or run.logical_date or run.run_after) if folder else None
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
        return self.changed(context, url, alias)


class RollbackOperator(AliasOperator):
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
        return self.changed(context, url, alias)


def versions_of(pipeline: str | None, context: Context, settings: Settings) -> str:
    """The URL of the folder of the versions of a DAG, by default of the running one.

    Raises:
        FinalError: it has none.
    """
    dag = pipeline or context["ti"].dag_id
    url = f"{settings.store}/{path_segment(dag)}/{VERSIONS}"
    if not store_of(url, settings).folders():
        there = store_of(settings.store, settings).folders()
        raise FinalError(
            f"{dag!r} has exported no version{nearest(dag, there)}; {settings.store} has "
            f"{', '.join(there) or 'no pipeline'}"
        )
    return url


def changed_by(context: Context) -> str:
    """Who changed the alias, for the history: the run, and the user who triggered it."""
    run: Any = context["dag_run"]
    user = getattr(run, "triggering_user_name", None)
    return f"{run.dag_id}/{run.run_id}" + (f" of {user}" if user else "")
