"""Reads of the store for the pages of Airflow's UI, which many viewers ask for at the same time."""

import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from cachetools import LRUCache
from fastapi import Depends, HTTPException

from aerotrain.contract.errors import AerotrainError
from aerotrain.contract.layout import path_segment
from aerotrain.store import Store
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.settings import Settings

#: Seconds for which a client of the store is used, before its credential is read again.
_CREDENTIAL_SECONDS = 300

#: Seconds for which a request waits for the store, and an answer is new enough for other viewers.
_PATIENCE, _FRESH = 4.0, 2.0

_MOST_ANSWERS, _THREADS = 100, 8

#: The right to see what is in the store of the DAG in the path.
MAY_READ = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))


@dataclass
class _Answer:
    """An answer that is being read; another one is read after ``expires``."""

    future: Future[Any]
    expires: float = math.inf


class Answers:
    """The last answers by key: many viewers ask for the same run every few seconds.

    Each is read in the background, by one thread at a time, so that a slow store does not occupy
    the threads of the API server.
    """

    def __init__(self) -> None:
        self._answers: LRUCache[Hashable, _Answer] = LRUCache(_MOST_ANSWERS)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="run-page")

    def get(self, key: Hashable, read: Callable[[], Any], patience: float = _PATIENCE) -> Any:
        """What ``read`` returns, or has returned to an earlier call shortly before.

        Raises:
            TimeoutError: it takes longer than ``patience`` seconds; a later call has the answer.
            Exception: what ``read`` raises.
        """
        with self._lock:
            answer = self._answers.get(key)
            if answer is None or answer.expires < time.monotonic():
                answer = self._answers[key] = _Answer(self._threads.submit(read))
        try:
            return answer.future.result(patience)
        finally:
            if answer.future.done():
                answer.expires = min(answer.expires, time.monotonic() + _FRESH)

    def get_or_refuse(self, key: Hashable, read: Callable[[], Any]) -> Any:
        """What ``get`` returns; its errors are those of a request."""
        try:
            return self.get(key, read)
        except TimeoutError:
            why = "the store has not answered yet: ask again"  # as a browser does by itself
            raise HTTPException(503, why, {"Refresh": "2"}) from None
        except AerotrainError as error:
            raise HTTPException(502, str(error)) from error


answers = Answers()


def store_of_dag(dag_id: str) -> Store:
    """The store of a pipeline."""
    return store_of_all().child(path_segment(dag_id))


def store_of_all() -> Store:
    """The store of all pipelines; within a period the same, because making a client takes long."""
    return _store_of_period(int(time.time() // _CREDENTIAL_SECONDS))


@lru_cache(maxsize=1)
def _store_of_period(_period: int) -> Store:
    settings = Settings.read()
    return store_of(settings.store, settings)
