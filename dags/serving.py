"""Choose by hand which version of a pipeline is served.

`promote` serves the version of the given number, `rollback` the one that was served before the
present one was promoted. Servers that follow the pipeline load it within seconds. The history, with
your reason, is kept in `serving/aliases/serving.json` of the pipeline's store. The page *Models* of
the UI lists the pipelines and versions that exist, and changes the same: this DAG is for REST, and
for other DAGs that trigger it. Its form lists none, because a DAG file must not read the store.
"""

from airflow.sdk import Param, dag, task

from aerotrain_airflow.operators.links import MODELS, base_url
from aerotrain_airflow.operators.release import PromoteOperator, RollbackOperator
from aerotrain_airflow.params import RunParam

_FORM = {"section": "Run Parameters"}
_LISTED = f"The page [Models]({base_url()}{MODELS}) lists those that exist."


@dag(
    schedule=None,
    doc_md=__doc__,
    tags=["aerotrain"],
    params={
        "pipeline": Param(
            "flats",
            type="string",
            title="Pipeline",
            description_md=f"Id of its DAG. {_LISTED}",
            **_FORM,
        ),
        "action": Param(
            "promote", type="string", enum=["promote", "rollback"], title="Action", **_FORM
        ),
        "version": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Version",
            description_md=f"The number of the version to promote. {_LISTED}",
            **_FORM,
        ),
        "older": Param(
            False,
            type="boolean",
            title="Older version",
            description="Allow a version that is older than the served one.",
            **_FORM,
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            title="Reason",
            description="It is kept in the history.",
            **_FORM,
        ),
    },
)
def serving() -> None:
    of = {"pipeline": RunParam("pipeline"), "reason": RunParam("reason")}

    @task.branch
    def action(params: dict[str, str] | None = None) -> str:
        return (params or {})["action"]

    action() >> [
        PromoteOperator(
            task_id="promote", version=RunParam("version"), older=RunParam("older"), **of
        ),
        RollbackOperator(task_id="rollback", **of),
    ]


serving()
