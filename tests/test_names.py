"""Names derived from Airflow's names."""

import re

import pytest

from aerotrain.contract.layout import DNS_LABEL, is_path_segment, job_name, path_segment

HOSTILE = [
    "../../etc/passwd",
    "a/b",
    "a b",
    "..",
    ".",
    "",
    "é",
    "a\nb",
    "x" * 300,
    "a..b",
    ".hidden",
]


@pytest.mark.parametrize("run_id", HOSTILE)
def test_a_hostile_run_id_becomes_one_safe_segment(run_id: str) -> None:
    segment = path_segment(run_id)
    assert re.fullmatch(r"[A-Za-z0-9_+=.:-]+", segment)
    assert is_path_segment(segment)
    assert ".." not in segment
    assert not segment.startswith(".")
    assert len(segment) <= 80


def test_two_run_ids_never_share_a_segment() -> None:
    ids = [*HOSTILE, *(path_segment(each) for each in HOSTILE), "a-b", "a:b", "a;b", "x" * 301]
    assert len({path_segment(each) for each in ids}) == len(ids)


@pytest.mark.parametrize("run_id", [*HOSTILE, "manual__2026"])
def test_a_jobs_name_is_a_dns_label_with_room_for_the_replicas(run_id: str) -> None:
    name = job_name("My.DAG_ü", run_id, "prepare.partition", 3)
    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= 40


def test_a_jobs_name_differs_by_dag_run_task_and_map_index() -> None:
    names = {
        job_name("dag", "run", "task", -1),
        job_name("dag", "run", "task", 0),
        job_name("dag", "run", "task", 1),
        job_name("dag", "run2", "task", -1),
        job_name("dag2", "run", "task", -1),
        job_name("dag", "run", "task2", -1),
    }
    assert len(names) == 6
    assert job_name("dag", "run", "task", -1) in names


@pytest.mark.parametrize("task_id", ["2_train", "3", "2-2"])
def test_the_name_of_a_job_begins_with_a_letter_as_a_service_requires(task_id: str) -> None:
    assert re.fullmatch(r"job[a-z0-9-]*", job_name("digits", "run", task_id))
