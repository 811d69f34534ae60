"""The operator that removes what is old from the store, from the task's own process."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context

from aerotrain.contract.layout import path_segment
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.retention import make_plan, remove
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.operators.task_try import translated
from aerotrain_airflow.settings import Settings


class RetentionOperator(BaseOperator):
    """Remove what is old from the store, by a policy.

    Args:
        policy: the fields of ``aerotrain.contract.retention.RetentionPolicy``.
        pipeline: the id of one DAG, by default all of the store.
        dry_run: only list what would be removed.

    All of these are templated. A task that was interrupted continues in its next try.

    Raises:
        AirflowFailException: the policy is not accepted, or there is no such pipeline.
        AirflowException: the store is unavailable; Airflow's retries apply.
    """

    template_fields: Sequence[str] = ("policy", "pipeline", "is_dry_run")

    def __init__(
        self,
        *,
        policy: Mapping[str, Any],
        pipeline: Any = None,
        dry_run: Any = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.policy = policy
        self.pipeline = pipeline
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """Remove it, and list it in the log; returns the totals by kind, and what was removed."""
        with translated():
            policy = RetentionPolicy.from_dict(self.policy)
            settings = Settings.read()
            store = store_of(settings.store, settings)
            pipeline = path_segment(self.pipeline) if self.pipeline else None
            plan = make_plan(store, policy, time.time(), pipeline)
            for line in plan.to_text(with_kept=True).splitlines():
                self.log.info("%s", line)
            if self.is_dry_run:
                self.log.info("this was a dry run: nothing was removed")
                return {"planned": plan.totals}
            return {"planned": plan.totals, "removed": remove(store, plan, self.log.info)}
