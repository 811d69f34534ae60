"""The web application of the run page, which Airflow's API server mounts under ``PREFIX``.

Each route needs a login to Airflow and the right to read the task instances of the DAG in its path;
without them it answers 401 or 403. Airflow does not check the routes of plugins by itself.
"""

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models import DagRun, TaskInstance
from airflow.utils.state import DagRunState, TaskInstanceState
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from sqlalchemy import select

from aerotrain.contract.errors import AerotrainError, SpecError
from aerotrain.contract.layout import path_segment
from aerotrain.store import MissingError, Store
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.run_page.run_data import run_data
from aerotrain_airflow.run_page.store_files import HEADERS, Answers, file_of, list_page
from aerotrain_airflow.settings import Settings

_STATIC = Path(__file__).parent / "static"

#: The states of a run whose trainings may still change.
_ACTIVE = (DagRunState.QUEUED, DagRunState.RUNNING)

#: For the page itself, which loads nothing but its own files.
_POLICY = {"Content-Security-Policy": "default-src 'self'; img-src 'self' data:"}

#: Seconds for which a client of the store is used, before its credential is read again.
_CREDENTIAL_SECONDS = 300

_answers: Answers[Any] = Answers()

_may_read = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))
_guarded = APIRouter(dependencies=[_may_read])


@_guarded.get("/runs/{dag_id}/{run_id:path}")
def page(dag_id: str, run_id: str) -> FileResponse:
    """The page of a run, which asks for its data."""
    return FileResponse(_STATIC / "page.html", headers=_POLICY)


@_guarded.get("/data/{dag_id}/{run_id:path}")
def data(dag_id: str, run_id: str, session: SessionDep) -> JSONResponse:
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
    active = state in _ACTIVE
    return _answer(
        ("run", dag_id, run_id),
        lambda: run_data(_store(dag_id), dag_id, run_id, time.time(), active=active),
        state=state,
        failed_tasks=sorted(set(session.scalars(failed))),
        active=active,
    )


@_guarded.get("/files/{dag_id}/{key:path}")
def file(dag_id: str, key: str) -> Response:
    """A file of the pipeline's store, or the list of a folder if the key ends in a slash."""
    try:
        store = _store(dag_id)
        if not key or key.endswith("/"):
            return HTMLResponse(list_page(store, key), headers=HEADERS)
        found = file_of(store, key)
    except MissingError:
        raise HTTPException(404, f"{key} is not in the store of {dag_id}") from None
    except SpecError as error:
        raise HTTPException(400, str(error)) from error
    except AerotrainError as error:
        raise HTTPException(502, str(error)) from error
    return Response(found.content, media_type=found.kind, headers=HEADERS)


def _answer(key: tuple[str, ...], read: Any, **more: Any) -> JSONResponse:
    """The answer to a request for data. Where the store is slow, it is the last one, with a note.

    ``more`` is added to it.

    Raises:
        HTTPException: there is no last one.
    """
    try:
        answer = _answers.get(key, read)
    except TimeoutError:
        raise HTTPException(503, "the store has not answered yet: ask again") from None
    except AerotrainError as error:
        raise HTTPException(502, str(error)) from error
    notes = []
    if answer.error:
        age = time.time() - answer.at
        notes = [f"the store failed, and what is shown is {age:.0f} s old: {answer.error}"]
    return JSONResponse({**answer.value, **more, "notes": notes})


def _store(dag_id: str) -> Store:
    return _store_at(dag_id, int(time.time() // _CREDENTIAL_SECONDS))


@lru_cache(maxsize=200)
def _store_at(dag_id: str, _period: int) -> Store:
    """The store of a pipeline; within a period the same, because making a client takes long."""
    settings = Settings.read()
    return store_of(f"{settings.store}/{path_segment(dag_id)}", settings)


class _StaticFiles(StaticFiles):
    """Files that a browser asks for each time whether they have changed: names have no version."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


#: The schema and its pages are off, because Airflow would show them without a login.
app = FastAPI(title="aerotrain", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(_guarded)
# The same for every user, so without a login.
app.mount("/static", _StaticFiles(directory=_STATIC))
