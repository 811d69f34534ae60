"""Retention: what a policy removes, what it never does, and that nothing is half there."""

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.layout import PROMOTIONS, REMOVALS
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.retention import RemovalPlan, item_key, make_plan, remove
from aerotrain.serving.alias import alias_of, promote, rollback
from aerotrain.store import (
    MANIFEST,
    Manifest,
    MissingError,
    Store,
    StoreUnavailable,
    open_store,
)
from aerotrain.store.local import LocalStore
from support.retained_store import DAY, NOW, Pipelines

#: Keeps as little as a policy can.
LEAST = RetentionPolicy(keep_days=1, keep_runs=1, keep_versions=1, keep_rollbacks=1)


@pytest.fixture
def pipelines(tmp_path: Path) -> Pipelines:
    return Pipelines(tmp_path / "a store")


def planned(pipelines: Pipelines, policy: RetentionPolicy = LEAST, **more: Any) -> RemovalPlan:
    return make_plan(pipelines.store, policy, NOW, **more)


def going(plan: RemovalPlan) -> set[str]:
    return {each.key for each in plan.going}


def test_what_is_old_goes_by_kind_oldest_first_and_all_else_has_a_reason(
    pipelines: Pipelines,
) -> None:
    one, two, three = (
        pipelines.whole("flats", name, days, number)
        for number, (name, days) in enumerate([("one", 9), ("two", 8), ("three", 7)], 1)
    )
    plan = planned(pipelines)
    expected = [made[kind] for kind in ("model", "version", "data", "code") for made in (one, two)]
    assert [each.key for each in plan.going] == [pipelines.key(each) for each in expected]
    assert plan.kept == {
        "flats/runs/three": "the newest of the runs",
        "flats/serving/3": "the newest of the versions",
        pipelines.key(three["data"]): "the newest of the data sets",
        pipelines.key(three["code"]): "needed by flats/runs/three",
    }
    assert plan.totals["run"]["items"] == 2
    size = sum(each.size for each in plan.going)
    assert f"together 8 of {size:,} bytes; kept: 4" in plan.to_text()
    copied = pipelines.folder.rename(pipelines.folder.with_name("copied"))
    after = planned(Pipelines(copied))
    assert (after.kept, after.going) == (plan.kept, plan.going)


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ({}, {"3"}),
        ({"keep_versions": 2}, {"2", "3"}),
        ({"keep_runs": 2}, {"3"}),
        ({"keep_days": 8.5}, {"2", "3"}),
        ({"margin_hours": 8.5 * 24}, {"2", "3"}),
    ],
)
def test_each_field_of_the_policy_keeps_versions_and_what_they_were_made_of(
    pipelines: Pipelines, policy: dict[str, float], left: set[str]
) -> None:
    made = {
        str(number): pipelines.whole("flats", f"r{number}", 10 - number, number)
        for number in (1, 2, 3)
    }
    gone = going(planned(pipelines, RetentionPolicy.from_dict({**vars(LEAST), **policy})))
    versions = {
        each.key.split("/")[2] for each in pipelines.store.list("flats/serving")
    } & made.keys()
    assert versions - {key.rpartition("/")[2] for key in gone} == left
    for number in left:
        assert not gone & pipelines.keys(*made[number].values())


def test_what_is_served_or_could_be_by_rollbacks_is_kept_with_its_run_data_and_code(
    pipelines: Pipelines,
) -> None:
    made = {n: pipelines.whole("flats", f"r{n}", 30 - n, n) for n in range(1, 7)}
    versions = pipelines.store.child("flats/serving")
    for number in (1, 2, 4):
        promote(versions, number, by="ann")
    plan = planned(pipelines)
    assert plan.kept["flats/serving/4"] == "served"
    assert plan.kept["flats/serving/2"] == "served after a rollback"
    for number in (2, 4):
        assert pipelines.keys(*made[number].values()) <= plan.kept.keys()
    for number in (1, 3, 5):
        assert pipelines.keys(*made[number].values()) <= going(plan)
    deep = planned(pipelines, RetentionPolicy.from_dict({**vars(LEAST), "keep_rollbacks": 2}))
    assert pipelines.keys(*made[1].values()) <= deep.kept.keys()


def test_a_starting_point_is_kept_but_not_all_that_were_before_it(pipelines: Pipelines) -> None:
    datas = [pipelines.dataset("flats", f"d{n}", 20) for n in range(3)]
    first = pipelines.run("flats", "first", 12, data=datas[0])
    second = pipelines.run("flats", "second", 11, data=datas[1], start_from=first)
    pipelines.run("flats", "third", 10, data=datas[2], start_from=second)
    plan = planned(pipelines)
    assert plan.kept["flats/runs/second"] == "needed by flats/runs/third"
    assert {"flats/runs/first", pipelines.key(datas[0])} <= going(plan)
    assert pipelines.key(datas[2]) in plan.kept


def test_a_run_that_was_written_to_lately_keeps_what_it_reads_and_what_its_tasks_returned(
    pipelines: Pipelines,
) -> None:
    data, code, other = (
        pipelines.dataset("flats", "old", 40),
        pipelines.code("flats", "old", 40),
        pipelines.dataset("flats", "returned", 40),
    )
    pipelines.dataset("flats", "newest", 30)
    pipelines.run("flats", "running", 0.5, data=data, code=code, ended=False)
    result = {"attempt": "1", "value": {"output": other, "partitions": []}}
    place = pipelines.store.child("flats/runs/running/prepare.plan")
    place.put("result.json", json.dumps(result).encode())
    plan = planned(pipelines, RetentionPolicy.from_dict({**vars(LEAST), "keep_days": 0}))
    assert going(plan) == set()
    assert plan.kept[pipelines.key(data)] == "needed by flats/runs/running"
    assert {pipelines.key(code), pipelines.key(other)} <= plan.kept.keys()


def test_the_newest_data_set_of_each_name_is_kept_and_an_unfinished_one_is_not_newest(
    pipelines: Pipelines,
) -> None:
    buyers = pipelines.dataset("flats", "buyers", 50, name="buyers")
    flats = pipelines.dataset("flats", "flats", 40)
    pipelines.dataset("flats", "unfinished", 30, complete=False)
    assert pipelines.keys(buyers, flats) == planned(pipelines).kept.keys()


def test_predictions_keep_their_version_also_one_of_another_pipeline(pipelines: Pipelines) -> None:
    old, new = (pipelines.whole("flats", f"r{n}", 30 - n, n) for n in (1, 2))
    pipelines.predictions("scores", "table", 0.5, model=old["version"])
    gone = pipelines.predictions("scores", "other", 5, model=new["version"])
    for pipeline in (None, "flats"):
        kept = planned(pipelines, pipeline=pipeline).kept
        assert pipelines.keys(*old.values()) <= kept.keys()
    assert going(planned(pipelines, pipeline="flats")) == set()
    assert going(planned(pipelines)) == {pipelines.key(gone)}


def test_other_things_in_the_bucket_are_left(pipelines: Pipelines) -> None:
    pipelines.whole("flats", "one", 30, 1)
    keys = ["mlflow/runs/1/params", "flats/notes/x", "logs/a", "flats/datasets/mine/x", "runs/a/b"]
    for key in keys:
        pipelines.store.put(key, b"x")
        os.utime(pipelines.folder / key, (NOW - 900 * DAY,) * 2)
    assert going(planned(pipelines)) == set()
    with pytest.raises(FinalError, match="'mlflow'; it has flats"):
        planned(pipelines, pipeline="mlflow")


def test_a_damaged_document_of_a_kept_item_ends_the_plan(pipelines: Pipelines) -> None:
    model = pipelines.whole("flats", "one", 30, 1)["model"]
    store = open_store(model.removesuffix("/model.json"))
    store.put("model.json", b"{")
    with pytest.raises(FinalError, match=r"runs/one/train/model.json is no JSON .* restore it"):
        planned(pipelines)


class Interrupted(LocalStore):
    """A store that becomes unavailable at one of its deletions."""

    def __init__(self, root: Path, deletions: int) -> None:
        super().__init__(root)
        self.deletions = deletions

    def delete(self, key: str) -> None:
        if self.deletions == 0:
            raise StoreUnavailable("away")
        self.deletions -= 1
        super().delete(key)

    def child(self, prefix: str) -> "Interrupted":
        return Interrupted(self.root / prefix, self.deletions)


def test_a_removal_that_is_interrupted_leaves_nothing_half_there_and_the_next_one_finishes(
    tmp_path: Path,
) -> None:
    finished = deletions = 0
    while not finished:
        pipelines = Pipelines(tmp_path / str(deletions))
        for number in (1, 2):
            pipelines.whole("flats", f"r{number}", 30 - number, number)
        whole = {each.key for each in pipelines.store.list()}
        try:
            remove(Interrupted(pipelines.folder, deletions), planned(pipelines), lambda _: None)
            finished = 1
        except TemporaryError:
            check_whole_or_absent(pipelines.store, whole)
        remove(pipelines.store, planned(pipelines), lambda _: None)
        assert going(planned(pipelines)) == set()
        left = {item_key(each.key) for each in pipelines.store.list()} - {None}
        assert left == planned(pipelines).kept.keys()
        deletions += 1
    assert deletions > 10


def check_whole_or_absent(store: Store, whole: set[str]) -> None:
    """Check that each document that readers trust has all objects that it had."""
    there = {each.key for each in store.list()}
    for key in there:
        folder, _, name = key.rpartition("/")
        if folder.endswith("/parts"):
            folder = folder.removesuffix("/parts")
            assert {each for each in whole if each.startswith(f"{folder}/train-")} <= there
        elif name == MANIFEST and "/datasets/" not in key:
            files = Manifest.from_json(store.get(key)).files
            assert {f"{folder}/{each}" for each in files} <= there
        elif name in (MANIFEST, "model.json"):
            assert {each for each in whole if each.startswith(f"{folder}/")} <= there


class Meddled(LocalStore):
    """A store in which something happens before one of its requests."""

    def __init__(self, root: Path, meddle: Callable[[], None]) -> None:
        super().__init__(root)
        self.meddle = meddle

    def child(self, prefix: str) -> "Meddled":
        return Meddled(self.root / prefix, self.meddle)

    def __getattribute__(self, name: str) -> Any:
        if name in ("put", "get_range", "stat", "exists", "delete", "list"):
            super().__getattribute__("meddle")()
        return super().__getattribute__(name)


def removed(store: Store, plan: RemovalPlan) -> str:
    remove(store, plan, lambda _: None)
    return "removed"


def promoted(store: Store, _plan: RemovalPlan) -> str:
    try:
        promote(store.child("flats/serving"), 1, by="ann")
    except FinalError:
        return "refused"
    return "promoted"


def meeting(pipelines: Pipelines, outer: Any, inner: Any, request: int) -> list[str]:
    """The outcomes of ``outer``, and of ``inner`` if it had its turn before that request."""
    plan, requests, outcomes = planned(pipelines), count(), []

    def meddle() -> None:
        if next(requests) == request:
            outcomes.append(inner(pipelines.store, plan))

    return [outer(Meddled(pipelines.folder, meddle), plan), *outcomes]


@pytest.mark.parametrize(("outer", "inner"), [(removed, promoted), (promoted, removed)])
def test_a_version_that_is_promoted_during_its_removal_is_removed_or_served_never_both(
    tmp_path: Path, outer: Any, inner: Any
) -> None:
    both, requests = True, count()
    while both:
        request = next(requests)
        pipelines = Pipelines(tmp_path / str(request))
        for number in (1, 2, 3):
            pipelines.whole("flats", f"r{number}", 30 - number, number)
        outcomes = meeting(pipelines, outer, inner, request)
        both = len(outcomes) == 2
        alias = alias_of(pipelines.store.child("flats/serving"))
        assert (alias is not None) == ("promoted" in outcomes)
        left = {each.key for each in pipelines.store.list("flats/serving/1")}
        if alias is not None:
            assert len(left) == 3
            assert f"flats/serving/1/{MANIFEST}" in left
        assert list(pipelines.store.list(f"flats/serving/{REMOVALS}")) == []
    assert next(requests) > 5


def test_a_version_whose_removal_has_begun_is_not_promoted_and_no_rollback_serves_it(
    pipelines: Pipelines,
) -> None:
    for number in (1, 2):
        pipelines.whole("flats", f"r{number}", 30 - number, number)
    versions = pipelines.store.child("flats/serving")
    promote(versions, 1, by="ann")
    promote(versions, 2, by="ann")
    versions.put(f"{REMOVALS}/1.json", b"{}")
    with pytest.raises(FinalError, match=r"version 1 of .* is being removed.*promote another"):
        promote(versions, 1, by="ann", older=True)
    with pytest.raises(FinalError, match="is being removed"):
        rollback(versions, by="ann")
    os.utime(pipelines.folder / f"flats/serving/{REMOVALS}/1.json", (NOW - 9 * DAY,) * 2)
    plan = planned(pipelines)
    assert plan.kept["flats/serving/1"] == "served after a rollback"
    remove(pipelines.store, plan, lambda _: None)
    assert rollback(versions, by="ann").version == 1


def test_what_is_used_between_the_plan_and_the_removal_is_left(pipelines: Pipelines) -> None:
    for number in (1, 2):
        pipelines.whole("flats", f"r{number}", 30 - number, number)
    plan = planned(pipelines)
    code = next(each.key for each in plan.going if "/code/" in each.key)
    for key in ("flats/runs/r1/train/lease.json", code):
        pipelines.store.put(key, b"used")
    said: list[str] = []
    done = remove(pipelines.store, plan, said.append)
    assert (done["left"], done["items"]) == (2, 2)
    assert "left, because it was used meanwhile: flats/runs/r1" in said
    pipelines.store.get("flats/runs/r1/train/model.json")
    pipelines.store.get(code)


def test_the_operator_lists_in_a_dry_run_and_then_removes(
    pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from aerotrain_airflow.steps.retention import RetentionOperator

    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", pipelines.store.url)
    for number in (1, 2):
        pipelines.whole("flats", f"r{number}", 30 - number, number)

    def run(**arguments: Any) -> Any:
        given = {"policy": vars(LEAST), **arguments}
        return RetentionOperator(task_id="remove", **given).execute({})

    assert run(dry_run=True)["planned"]["run"]["items"] == 1
    assert len(list(pipelines.store.list("flats/runs/r1"))) > 0
    assert run(pipeline="flats")["removed"]["items"] == 4
    assert run()["removed"]["items"] == 0
    for wrong in ({"pipeline": "flat"}, {"policy": {"keep_versions": 0}}):
        with pytest.raises(AirflowFailException):
            run(**wrong)
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", "s3://bucket")
    monkeypatch.setenv(
        "AIRFLOW_CONN_STORE",
        '{"conn_type": "aws", "login": "a", "password": "b", '
        '"extra": {"endpoint_url": "http://127.0.0.1:9"}}',
    )
    with pytest.raises(AirflowException, match="did not answer") as raised:
        run()
    assert not isinstance(raised.value, AirflowFailException)


def test_the_command_lists_and_removes_only_where_that_is_asked(
    pipelines: Pipelines, capsys: pytest.CaptureFixture[str]
) -> None:
    from aerotrain.standalone.cli import main

    for number in (1, 2):
        pipelines.whole("flats", f"r{number}", 30 - number, number)
    words = ["retention", pipelines.store.url, "--keep-days", "1", "--keep-runs", "1"]

    def said(*more: str) -> str:
        with pytest.raises(SystemExit):
            main([*words, "--keep-versions", "1", *more])
        return capsys.readouterr().out

    assert "nothing is removed; --delete removes what is listed" in said()
    assert "kept: flats/serving/2, the newest of the versions" in said("--kept")
    assert "error: keep_versions must be a whole number" in said("--keep-versions", "0")
    assert "removed: 4 of" in said("--delete")
    assert "together 0 of 0 bytes" in said()
    words[1] = f"{pipelines.store.url}/flats"
    assert "/flats has nothing of a pipeline; give the folder of pipelines" in said()


@pytest.mark.process
def test_what_is_old_in_a_bucket_is_removed(s3_url: str, tmp_path: Path) -> None:
    store = open_store(s3_url)
    local = Pipelines(tmp_path)
    for number in (1, 2):
        local.whole("flats", f"r{number}", 30 - number, number)
    for each in local.store.list():
        store.put(each.key, local.store.get(each.key))
    written = next(iter(store.list())).modified
    assert {*make_plan(store, LEAST, written + 60).going} == set()
    plan = make_plan(store, LEAST, written + 9 * DAY)
    assert {"run", "version", "code archive"} <= plan.totals.keys()
    assert remove(store, plan, lambda _: None)["left"] == 0
    assert {item_key(each.key) for each in store.list()} - {None} == plan.kept.keys()
    with pytest.raises(MissingError):
        store.stat(f"flats/serving/{PROMOTIONS}/1.json")
