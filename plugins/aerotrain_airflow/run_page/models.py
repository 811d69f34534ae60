"""The page of models: the versions of each pipeline, which one is served, and buttons to change it.

A user sees the pipelines of the DAGs that they may read. A change needs the right to trigger runs
of the DAG, because a run with the step ``promote`` does the same. It is in Airflow's audit log.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.models import DagModel
from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader
from starlette.background import BackgroundTask

from aerotrain.contract.errors import AerotrainError, SpecError
from aerotrain.contract.layout import PAGE, VERSIONS, path_segment
from aerotrain.reading import Pipeline
from aerotrain.serving.alias import promote, rollback
from aerotrain.store.manifest import each_of
from aerotrain_airflow.operators.links import address_of_run, base_url
from aerotrain_airflow.run_page.store_reads import MAY_READ, answers, store_of_all, store_of_dag
from aerotrain_airflow.settings import Settings

router = APIRouter()

_TEMPLATE = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
).get_template("models.html")

#: No page of another origin may show it in a frame, in which a click would change what is served.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; form-action 'self'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
}

#: The newest versions and changes that are shown of a pipeline.
_MOST = 50

#: The right that a change needs.
CHANGE: dict[str, Any] = {"method": "POST", "access_entity": DagAccessEntity.RUN}


def from_this_site(request: Request) -> None:
    """Refuse a form that a page of another site has sent with the user's cookie.

    Browsers say by which page a request was made, over plain HTTP its origin alone:
    https://developer.mozilla.org/docs/Web/HTTP/Headers/Sec-Fetch-Site
    """
    origin, ours = request.headers.get("origin"), (request.headers.get("host"), base_url())
    is_ours = origin is None or urlsplit(origin).netloc in (ours[0], urlsplit(ours[1]).netloc)
    if request.headers.get("sec-fetch-site", "same-origin" if is_ours else "") != "same-origin":
        raise HTTPException(403, f"the form was sent by another site, {origin}: use Airflow's page")


@router.get("/models")
def models(user: GetUserDep) -> Response:
    """The pipelines that have versions, each with the one that is served."""
    ids = get_auth_manager().get_authorized_dag_ids(user=user)
    dags = {path_segment(each): each for each in ids}

    def read() -> list[dict[str, Any]]:
        ours = [dags[each] for each in store_of_all().folders() if each in dags]
        return [each for each in each_of(lambda dag: _model(dag, 0), ours) if each["versions"]]

    return _html(root=".", models=answers.get_or_refuse(frozenset(ids), read))


@router.get("/models/{dag_id}", dependencies=[MAY_READ])
def model(dag_id: str, user: GetUserDep, served: int | None = None) -> Response:
    """The versions of a pipeline; ``served`` is the one to which the user has just changed."""
    return _page(dag_id, user, served=served)


@router.post(
    "/models/{dag_id}",
    dependencies=[
        Depends(from_this_site),
        Depends(requires_access_dag(**CHANGE)),
        Depends(action_logging("change_served_version")),
    ],
)
def change_served_version(
    dag_id: str,
    user: GetUserDep,
    reason: Annotated[str, Form()] = "",
    version: Annotated[int | None, Form()] = None,
    older: Annotated[bool, Form()] = False,
) -> Response:
    """Promote a version or, without one, roll back; a refusal is shown on the page."""
    store, by, why = store_of_dag(dag_id).child(VERSIONS), user.get_name(), reason.strip()
    try:
        if not why:
            raise SpecError("no reason is given: say in a few words why, for the history")
        if version is None:
            alias = rollback(store, by=by, reason=why)
        else:
            alias = promote(store, version, by=by, reason=why, older=older)
    except AerotrainError as error:
        return _page(dag_id, user, 409, error=str(error), version=version, why=why)
    recorded = BackgroundTask(_record, dag_id, f"{store.url}/{alias.version}")
    return RedirectResponse(f"{quote(dag_id)}?served={alias.version}", 303, background=recorded)


def _record(dag_id: str, version: str) -> None:
    """Record what is served now, as it is recorded after a task that promotes."""
    if mlflow := Settings.read().mlflow:
        from aerotrain_airflow.tracking.mlflow_runs import record_served

        record_served(mlflow, version)
    if find_spec("airflow.providers.openlineage"):  # an extra
        from aerotrain_airflow.tracking.lineage import emit_served

        emit_served(dag_id, version)


def _page(dag_id: str, user: Any, status: int = 200, **values: Any) -> Response:
    """The page of a pipeline. After a change, it is read again."""
    found = answers.get_or_refuse((dag_id, values.get("served")), lambda: _model(dag_id, _MOST))
    return _html(status, root="..", model=found, may_change=may_change(dag_id, user), **values)


def may_change(dag_id: str, user: Any) -> bool:
    """Whether the user may change what is served, or the size of a training."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(**CHANGE, details=details, user=user)


def _html(status: int = 200, **values: Any) -> Response:
    values |= {"page": PAGE, "address_of_run": address_of_run, "path_segment": path_segment}
    return HTMLResponse(_TEMPLATE.render(values), status, _HEADERS)


def _model(dag_id: str, most: int) -> dict[str, Any]:
    """All versions of a pipeline, and the newest ones and the served one with what is shown."""
    pipeline = Pipeline(store_of_dag(dag_id))
    versions, alias = pipeline.versions(), pipeline.alias()
    shown = [each for number, each in enumerate(versions) if number < most or each.is_served]
    # Read here, several at once: the template only shows it.
    metrics = list(each_of(lambda each: (each.metrics, each.started_from)[0], shown))
    return {
        "dag_id": dag_id,
        "versions": versions,
        "shown": shown,
        "metrics": list(dict.fromkeys(name for each in metrics for name in each)),
        "history": [] if alias is None else alias.history[: -_MOST - 1 : -1],
        "before": alias and alias.before(alias.version),
        "prefix": f"{pipeline.store.url}/",
    }
