"""The web application of our pages, which Airflow's API server mounts under ``PREFIX``.

Each route, here and in ``models.py``, needs a login to Airflow, and those of one DAG the right to
read its task instances; without them it answers 401 or 403. Airflow does not check the routes of
plugins by itself.

A browser needs no key of the store, nor access to it. Files were written by pipelines, so their
scripts must not act as the user who looks at them: they get an origin of their own, and load
nothing.
"""

import time
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.models import DagRun, TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.state import DagRunState, TaskInstanceState
from fastapi import APIRouter, Depends, FastAPI, Form, HTTPException
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from sqlalchemy import select

from aerotrain.contract.errors import AerotrainError, SpecError
from aerotrain.contract.layout import path_segment
from aerotrain.launch.wanted import want
from aerotrain.store import MissingError
from aerotrain_airflow.operators.task_try import FAILURE
from aerotrain_airflow.run_page import models
from aerotrain_airflow.run_page.run_data import run_data
from aerotrain_airflow.run_page.store_reads import MAY_READ, answers, store_of_dag

_STATIC = Path(__file__).parent / "static"

#: The states of a run whose trainings may still change.
_ACTIVE = (DagRunState.QUEUED, DagRunState.RUNNING)

#: For the page itself, which loads nothing but its own files.
_POLICY = {"Content-Security-Policy": "default-src 'self'; img-src 'self' data:"}

#: For files: https://developer.mozilla.org/docs/Web/HTTP/Headers/Content-Security-Policy/sandbox
_OF_FILES = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

#: The largest file that is shown, in bytes.
_LARGEST = 64 << 20

#: Types that a browser shows; anything else is text or a download.
_SHOWN = ("text/html", "application/json", "image/png", "image/jpeg", "image/svg+xml")
_TEXTS = (".jsonl", ".txt", ".log", ".py", ".csv")

_guarded = APIRouter(dependencies=[MAY_READ])


@_guarded.get("/runs/{dag_id}/{run_id:path}")
def page(dag_id: str, run_id: str) -> FileResponse:
    """The page of a run, which asks for its data."""
    return FileResponse(_STATIC / "page.html", headers=_POLICY)


@_guarded.get("/data/{dag_id}/{run_id:path}")
def data(dag_id: str, run_id: str, session: SessionDep, user: GetUserDep) -> JSONResponse:
    """What the page shows of a run, with its state and its failed tasks in Airflow."""
    asked = select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    state = session.scalar(asked)
    if state is None:
        raise HTTPException(404, f"{dag_id} has no run {run_id}")
    failed = select(TaskInstance.task_id).where(
        TaskInstance.dag_id == dag_id,
        TaskInstance.run_id == run_id,
        TaskInstance.state == TaskInstanceState.FAILED,
    )
    kept = select(XComModel.task_id, XComModel.value).where(
        XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == FAILURE
    )
    active = state in _ACTIVE
    found = answers.get_or_refuse(
        (dag_id, run_id, active),
        lambda: run_data(store_of_dag(dag_id), dag_id, run_id, time.time(), active=active),
    )
    failed_tasks = sorted(set(session.scalars(failed)))
    ended = session.execute(kept.order_by(XComModel.timestamp))
    failures = {"failed_tasks": failed_tasks, "reasons": [v for t, v in ended if t in failed_tasks]}
    of_run = {"state": state, "active": active, "may_change": models.may_change(dag_id, user)}
    return JSONResponse({**found, **failures, **of_run})


@_guarded.post(
    "/data/{dag_id}/{run_id:path}",
    dependencies=[
        Depends(models.from_this_site),
        Depends(requires_access_dag(**models.CHANGE)),
        Depends(action_logging("suspend_training")),
    ],
)
def suspend(
    dag_id: str,
    run_id: str,
    task: Annotated[str, Form()],
    suspended: Annotated[bool, Form()],
) -> Response:
    """Suspend a training of a run, or resume it; its follower does that within seconds."""
    store = store_of_dag(dag_id).child(f"runs/{path_segment(run_id)}")
    try:
        want(store.child(task), suspended=suspended)
    except AerotrainError as error:
        raise HTTPException(409, str(error)) from error
    return Response(status_code=204)


@_guarded.get("/files/{dag_id}/{key:path}")
def file(dag_id: str, key: str) -> Response:
    """A file of the pipeline's store."""
    try:
        store = store_of_dag(dag_id)
        if (size := store.stat(key).size) > _LARGEST:
            raise HTTPException(
                413,
                f"{store.url}/{key} has {size >> 20} MiB, and at most {_LARGEST >> 20} MiB are "
                "shown; download it with a client of the store",
            )
        return Response(store.get(key), media_type=_type(key), headers=_OF_FILES)
    except MissingError:
        raise HTTPException(404, f"{key} is not in the store of {dag_id}") from None
    except SpecError as error:
        raise HTTPException(400, str(error)) from error
    except AerotrainError as error:
        raise HTTPException(502, str(error)) from error


def _type(key: str) -> str:
    guessed, _ = guess_type(key)
    if guessed in _SHOWN:
        return f"{guessed}; charset=utf-8" if guessed.startswith("text/") else guessed
    return "text/plain; charset=utf-8" if key.endswith(_TEXTS) else "application/octet-stream"


class _StaticFiles(StaticFiles):
    """Files that a browser asks for each time whether they have changed: names have no version."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


#: The schema and its pages are off, because Airflow would show them without a login.
app = FastAPI(title="aerotrain", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(_guarded)
app.include_router(models.router)
# The same for every user, so without a login.
app.mount("/static", _StaticFiles(directory=_STATIC))
