"""The approval of a model by a person, who sees its metrics and its card."""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context

from aerotrain.contract.gate import CARD
from aerotrain.contract.job import prefix_of
from aerotrain_airflow.description import place_of
from aerotrain_airflow.links import browsable
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
