"""The data of the run page: lanes, marks, curves and files, from the objects of a run."""

import json
import threading
from dataclasses import replace

import pytest

from aerotrain.contract.curves import Curves, Point
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.layout import status_key
from aerotrain.contract.status import (
    GONE_AFTER,
    ProcessStatus,
    ReplicaStatus,
    StepTime,
)
from aerotrain.store import StoreUnavailable, open_store
from aerotrain_airflow.run_page.run_data import run_data
from aerotrain_airflow.run_page.store_files import Answers, file_of, list_page
from aerotrain_airflow.run_page.timeline import (
    at_steps,
    failure_of,
    lanes_of,
    marks_of,
    slowest,
    spans_of,
    step_times,
)

NOW = 1000.0


def process(began, ready=None, seen=0.0):
    return ProcessStatus(began=began, ready=ready, seen=seen, memory=100, peak=200)


def spans(*processes, events=(), ended=False, replica="worker-0"):
    status, since = ReplicaStatus(processes), processes[0].began
    found = spans_of(replica, status, list(events), NOW, since=since, ended=ended)
    return [(each.state.value, each.begin, each.end) for each in found]


def test_a_replica_starts_and_then_trains():
    assert spans(process(900, seen=NOW)) == [("starting", 900, None)]
    assert spans(process(900, 950, NOW)) == [("starting", 900, 950), ("training", 950, None)]


def test_a_replica_that_was_lost_comes_back():
    assert spans(process(800, 810, 900), process(920, 930, NOW)) == [
        ("starting", 800, 810),
        ("training", 810, 900),
        ("lost", 900, 920),
        ("starting", 920, 930),
        ("training", 930, None),
    ]


def test_a_replica_that_does_not_report_is_lost_unless_the_training_has_ended():
    silent = process(800, 810, NOW - GONE_AFTER - 1)
    assert spans(silent)[-1] == ("lost", silent.seen, None)
    assert spans(silent, ended=True)[-1] == ("training", 810, silent.seen)


def test_a_replica_that_begins_after_others_has_waited():
    statuses = {
        "chief": ReplicaStatus((process(750, 760, NOW),)),
        "ps-0": ReplicaStatus((process(800, 810, NOW),)),
    }
    lanes = lanes_of(statuses, [], NOW, ended=False)
    assert [each.state for each in lanes["chief"]] == ["starting", "training"]
    waiting = lanes["ps-0"][0]
    assert (waiting.state, waiting.begin, waiting.end) == ("waiting", 750, 800)


def test_a_loss_has_the_reason_of_the_event_log():
    failed = Event(event=EventType.DETECT, at=905, replica="worker-0", because="signal 9")
    status = ReplicaStatus((process(800, 810, 900), process(920, 930, NOW)))
    found = spans_of("worker-0", status, [failed], NOW, since=800, ended=False)
    assert [each.text for each in found if each.text] == ["signal 9"]


def chief(event, at, **others):
    return Event(event=event, at=at, replica="chief", **others)


def test_a_restart_is_marked_before_the_launcher_has_written_its_events_and_only_once():
    statuses = {"worker-0": ReplicaStatus((process(1), process(50)))}
    [mark] = marks_of([], statuses)
    assert (mark.kind, mark.at) == ("restart", 50)
    restart = Event(event=EventType.RESTART, at=20, replica="worker-0", because="signal 9")
    [mark] = marks_of([restart], statuses)
    assert (mark.at, mark.text) == (20, "worker-0 restarted: signal 9")


def restarts_in(statuses):
    return [each.text.partition(":")[0] for each in marks_of([], statuses)]


def test_replicas_that_restart_together_are_one_restart():
    statuses = {f"worker-{i}": ReplicaStatus((process(1), process(50 + i))) for i in range(3)}
    assert restarts_in(statuses) == ["worker-0, worker-1 and worker-2 started again"]
    statuses["chief"] = ReplicaStatus((process(1), process(300)))
    assert restarts_in(statuses)[1:] == ["chief started again"]
    many = {f"worker-{i}": ReplicaStatus((process(1), process(50))) for i in range(9)}
    assert restarts_in(many) == ["worker-0, worker-1, worker-2 and 6 others started again"]
    assert restarts_in({}) == []


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("crash", " after a crash"),
        ("memory", " after the memory limit was reached"),
        ("preempted", " after a preemption"),
        ("of a later version", ""),
    ],
)
def test_a_restart_says_what_failed_and_how(kind, after):
    why = "worker-1 was ended by signal 9; it is restarted (1 of 3)"
    died = "was ended by signal 9"
    failed = Event(event=EventType.DETECT, at=19, replica="worker-1", kind=kind, because=died)
    restarts = [
        Event(event=EventType.RESTART, at=20, replica=name, restarts=1, because=why)
        for name in ("worker-1", "chief")
    ]
    [failure, mark] = marks_of([failed, *restarts], {})
    assert (failure.kind, failure.text) == ("failure", "worker-1 was ended by signal 9")
    assert (mark.kind, mark.text) == ("restart", f"chief and worker-1 restarted{after}: {why}")


def test_a_training_that_has_failed_is_marked_once_with_the_reason_of_its_task(store):
    why = "worker-0 was ended by signal 9; it was restarted 0 times"
    failed = Event(event=EventType.DETECT, at=950, replica="worker-0", because="signal 9")
    end = Event(event=EventType.END, at=950, kind="lost", because=why)
    log = {"events": [json.loads(each.to_json()) for each in (failed, end)]}
    store.put("runs/one/train/events.json", json.dumps(log).encode())
    [training] = run_data(store, "flats", "one", NOW, active=False)["trainings"]
    marks = [(each["kind"], each["text"]) for each in training["marks"]]
    assert marks == [("failure", f"training failed: {why}")]
    assert training["failure"] == why


def test_a_training_that_is_tried_again_or_has_succeeded_has_not_failed():
    lost = Event(event=EventType.END, at=950, kind="lost", because="no node")
    assert failure_of([lost]) == "no node"
    assert failure_of([lost, chief(EventType.START, 960)]) == ""
    assert failure_of([chief(EventType.END, 950, step=9), replace(lost, kind="succeeded")]) == ""
    assert failure_of([]) == ""


def test_of_many_checkpoints_some_are_marked_and_the_last_one_always():
    events = [chief(EventType.SAVE_STALL, at, step=at, seconds=0.1) for at in range(5000)]
    events.append(chief(EventType.PREEMPTED, 2500.5, step=2500))
    found = marks_of(events, {})
    assert len(found) <= 201
    assert found[-1].step == 4999
    assert [each.step for each in found if each.kind == "preemption"] == [2500]


def test_a_mark_without_a_step_is_at_the_last_point_before_it():
    restarts = [Event(event=EventType.RESTART, at=at, replica="ps-0") for at in (5, 15, 25)]
    marks = marks_of(restarts, {})
    assert [each.step for each in at_steps(marks, [(10, 100), (20, 200)])] == [0, 100, 200]
    preempted = chief(EventType.PREEMPTED, 24, step=250)
    marks = marks_of([*restarts, preempted], {})
    assert [each.step for each in at_steps(marks, [(10, 100), (20, 200)])] == [0, 100, 250, 250]


@pytest.fixture
def store(tmp_path):
    """The store of a pipeline with a run whose chief was killed once."""
    store = open_store((tmp_path / "flats").as_uri())
    curves = Curves(300, f"{store.url}/datasets/abc")
    for step in range(0, 300, 100):
        curves.add(Point(at=900.0 + step / 10, step=step, metrics={"loss": 1.0, "rate": 0.1}))
    curves.add(Point(at=925.0, step=150, epoch=0, metrics={"val_loss": 0.5}))
    train = store.child("runs/one/train")
    train.put("progress.jsonl", curves.to_bytes())
    events = [
        chief(EventType.START, 890.0),
        chief(EventType.RESTORE, 895.0),
        chief(EventType.TRAIN, 920.0, step=200, seconds=25.0),
    ]
    train.put("events-chief.jsonl", "\n".join(each.to_json() for each in events).encode())
    train.put(status_key("chief"), ReplicaStatus((process(890, 900, NOW),)).to_json())
    train.put(status_key("worker-10"), ReplicaStatus((process(890, 900, NOW),)).to_json())
    train.put(status_key("worker-9"), ReplicaStatus((process(890, 900, NOW),)).to_json())
    evaluate = store.child("runs/one/evaluate")
    evaluate.put("card.html", b"<p>card</p>")
    evaluate.put("metrics.json", json.dumps({"metrics": {"accuracy": 0.9}}).encode())
    return store


def test_the_page_has_the_curves_lanes_and_files_of_a_run(store):
    data = run_data(store, "flats", "one", NOW)
    [training] = data["trainings"]
    assert (training["task"], training["steps"], training["running"]) == ("train", 300, True)
    assert training["curves"]["step"] == [0, 100, 200]
    assert training["curves"]["values"]["loss"] == [1.0, 1.0, 1.0]
    assert training["epochs"]["values"] == {"val_loss": [0.5]}
    assert [each["replica"] for each in training["lanes"]] == ["chief", "worker-9", "worker-10"]
    assert training["replicas"][0]["memory"] == 100
    assert training["goodput"]["steps"] == 200
    assert {each["title"]: each["href"] for each in data["files"] if "href" in each} == {
        "Model card": "files/flats/runs/one/evaluate/card.html",
        "Statistics of the data": "files/flats/datasets/abc/statistics.html",
        "Output": "files/flats/runs/one/",
        "Versions": "files/flats/serving/",
    }
    folder = f"{store.url}/runs/one/train/tensorboard"
    [command] = [each["command"] for each in data["files"] if "command" in each]
    assert command == f"tensorboard --load_fast=false --logdir {folder}"
    json.dumps(data, allow_nan=False)


def step_time(seconds, communication, waiting=0.001):
    return StepTime(seconds=seconds, input=waiting, communication=communication)


def test_of_replicas_that_wait_for_each_other_the_one_that_waits_least_is_the_slowest(store):
    """All of their steps take equally long."""
    for name, communication in (("chief", 0.06), ("worker-9", 0.065), ("worker-10", 0.01)):
        reported = replace(process(890, 900, NOW), step_times={name: step_time(0.1, communication)})
        store.put(f"runs/one/train/{status_key(name)}", ReplicaStatus((reported,)).to_json())
    [training] = run_data(store, "flats", "one", NOW)["trainings"]
    assert [each["replica"] for each in training["step_times"]] == [
        "chief",
        "worker-9",
        "worker-10",
    ]
    assert training["step_times"][0]["communication"] == 0.06
    slow = training["slowest"]
    assert (slow["replica"], slow["seconds"]) == ("worker-10", pytest.approx(0.09))
    assert slow["times"] == pytest.approx(0.09 / 0.0375)


def test_of_workers_of_a_coordinator_the_one_with_the_longest_steps_is_the_slowest():
    reported = {"worker-0": step_time(0.1, 0.01), "worker-1": step_time(0.3, 0.01)}
    chief = ReplicaStatus((replace(process(890, 900, NOW), step_times=reported),))
    earlier = {"worker-0": step_time(9.0, 0.01)}
    of_before = ReplicaStatus((replace(process(890, 900, NOW - 60), step_times=earlier),))
    times = step_times({"chief": chief, "worker-0": of_before})
    assert times == reported
    found = slowest(times)
    assert found is not None
    assert found.replica == "worker-1"


@pytest.mark.parametrize("times", [{}, {"chief": 0.1}, {"chief": 0.1, "worker-0": 0.105}])
def test_no_replica_is_slow_alone_or_if_it_is_about_as_fast_as_the_others(times):
    assert slowest({name: step_time(each, None) for name, each in times.items()}) is None


def test_a_restart_that_is_marked_while_the_training_runs_is_counted(store):
    again = ReplicaStatus((process(890, 900, 940), process(950, 960, NOW)))
    store.put(f"runs/one/train/{status_key('chief')}", again.to_json())
    [training] = run_data(store, "flats", "one", NOW)["trainings"]
    assert [each["kind"] for each in training["marks"]] == ["restart"]
    assert training["goodput"]["restarts"] == 1


@pytest.mark.parametrize("part", ["curves", "epochs"])
def test_no_extreme_of_any_metric_is_lost_where_points_stand_for_several(store, part):
    curves = Curves(3000, "")
    for step in range(3000):
        epoch = step if part == "epochs" else None
        accuracy = {3: 0.0, 4: 1.0}.get(step, 0.9)
        metrics = {"loss": step % 7, "accuracy": accuracy, "rate": 0.1}
        curves.add(Point(at=float(step), step=step, epoch=epoch, metrics=metrics))
    store.put("runs/one/train/progress.jsonl", curves.to_bytes())
    [training] = run_data(store, "flats", "one", NOW)["trainings"]
    found = training[part]
    assert set(found["values"]) == {"loss", "accuracy", "rate"}
    assert (min(found["lowest"]["loss"]), max(found["highest"]["loss"])) == (0, 6)
    assert (min(found["lowest"]["accuracy"]), max(found["highest"]["accuracy"])) == (0.0, 1.0)
    assert "rate" not in {**found["lowest"], **found["highest"]}, "it is constant"


def test_an_evaluator_that_lags_behind_supersedes_no_metrics_of_epochs(store):
    measured = {"step": 100, "at": 930.0, "metrics": {"loss": 0.4}}
    store.put("runs/one/train/evaluations/0001-0000000100.json", json.dumps(measured).encode())
    [training] = run_data(store, "flats", "one", NOW)["trainings"]
    [epochs, evaluations] = training["epochs"], training["evaluations"]
    assert (epochs["step"], epochs["values"]) == ([150], {"val_loss": [0.5]})
    assert (evaluations["step"], evaluations["values"]) == ([100], {"val_loss": [0.4]})


def test_a_training_that_has_ended_does_not_run_and_links_its_event_log(store):
    end = {"event": "end", "at": 990.0, "step": 300, "replica": "chief"}
    store.put("runs/one/train/events.json", json.dumps({"events": [end]}).encode())
    data = run_data(store, "flats", "one", NOW)
    assert data["trainings"][0]["running"] is False
    assert "Event log" in [each["title"] for each in data["files"]]
    assert data["trainings"][0]["marks"][-1]["kind"] == "end"


def test_a_run_that_has_reused_a_training_shows_its_curves(store):
    earlier, again = store.child("runs/one/train"), store.child("runs/two/train")
    end = {"event": "end", "at": 990.0, "step": 300, "replica": "chief"}
    again.put("reused.json", json.dumps({"run": "one", "prefix": earlier.url}).encode())
    again.put("progress.jsonl", earlier.get("progress.jsonl"))
    again.put("events.json", json.dumps({"events": [end]}).encode())
    data = run_data(store, "flats", "two", NOW)
    [training] = data["trainings"]
    assert training["curves"]["step"] == [0, 100, 200]
    assert training["reused_from"] == "one"
    [command] = [each["command"] for each in data["files"] if "command" in each]
    assert command.endswith(f"{earlier.url}/tensorboard")
    assert (training["running"], training["lanes"], training["replicas"]) == (False, [], [])


def test_no_replica_of_a_run_that_has_ended_is_lost_for_ever(store):
    """It was marked as failed, so that its log has no end."""
    later = NOW + 10 * GONE_AFTER
    for active, state in ((True, "lost"), (False, "training")):
        [training] = run_data(store, "flats", "one", later, active=active)["trainings"]
        assert {each["spans"][-1]["state"] for each in training["lanes"]} == {state}


def test_a_run_that_has_written_nothing_has_no_training(store):
    assert run_data(store, "flats", "manual__2026-01-01T00:00:00+00:00", NOW)["trainings"] == []


def test_what_does_not_fit_a_status_or_a_curve_is_left_out(store):
    store.put("runs/one/train/replicas/ps-0.json", b"[]")
    [training] = run_data(store, "flats", "one", NOW)["trainings"]
    assert "ps-0" not in [each["replica"] for each in training["lanes"]]


def test_a_store_that_fails_leaves_the_last_answer_with_the_reason():
    times = [0.0]
    answers = Answers(lambda: times[0])
    assert answers.get("run", lambda: 1).value == 1
    times[0] = 10.0

    def fails():
        raise StoreUnavailable("connection refused")

    answer = answers.get("run", fails)
    assert (answer.value, answer.at, answer.error) == (1, 0.0, "connection refused")
    with pytest.raises(StoreUnavailable):
        answers.get("another", fails)


def test_a_slow_store_is_asked_once_and_its_answer_is_kept_when_it_comes():
    release, asked, times = threading.Event(), [], [0.0]
    answers = Answers(lambda: times[0])

    def slow():
        asked.append(1)
        release.wait(60)
        return 2

    for _ in range(3):
        with pytest.raises(TimeoutError):
            answers.get("run", slow, patience=0.01)
    release.set()
    assert answers.get("run", slow, patience=60).value == 2
    assert asked == [1]


def test_files_are_shown_by_their_type_and_folders_as_lists(store):
    assert file_of(store, "runs/one/evaluate/card.html").kind == "text/html; charset=utf-8"
    assert file_of(store, "runs/one/train/progress.jsonl").kind.startswith("text/plain")
    page = list_page(store, "runs/one/")
    assert 'href="train/"' in page
    assert 'href="evaluate/"' in page
    store.put("runs/one/<b>/x", b"")
    assert "<b>/" not in list_page(store, "runs/one/")
