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
    Result,
    StepTime,
)
from aerotrain.launch.stragglers import own_times, stragglers
from aerotrain.serving.alias import promote
from aerotrain.store import StoreUnavailable, open_store
from aerotrain.store.manifest import Manifest, StoredFile
from aerotrain_airflow.run_page.run_data import run_data
from aerotrain_airflow.run_page.store_reads import Answers
from aerotrain_airflow.run_page.timeline import (
    failure_of,
    lanes_of,
    marks_of,
)

NOW = 1000.0


def process(began, ready=None, seen=0.0):
    return ProcessStatus(began=began, ready=ready, seen=seen, memory=100, peak=200)


def spans(*processes, events=(), ended=False):
    [lane] = lanes_of({"worker-0": ReplicaStatus(processes)}, list(events), NOW, ended=ended)
    return [(each["state"], each["from"], each["to"]) for each in lane["spans"]]


#: A silent one has not reported for longer than the limit.
SILENT = process(800, 810, NOW - GONE_AFTER - 1)
BACK = [("starting", 800, 810), ("training", 810, 900), ("lost", 900, 920)]


@pytest.mark.parametrize(
    ("processes", "ended", "expected"),
    [
        ([process(900, seen=NOW)], False, [("starting", 900, None)]),
        ([process(900, 950, NOW)], False, [("starting", 900, 950), ("training", 950, None)]),
        (
            [process(800, 810, 900), process(920, 930, NOW)],
            False,
            [*BACK, ("starting", 920, 930), ("training", 930, None)],
        ),
        ([SILENT], False, [*BACK[:1], ("training", 810, SILENT.seen), ("lost", SILENT.seen, None)]),
        ([SILENT], True, [*BACK[:1], ("training", 810, SILENT.seen)]),
    ],
    ids=["starts", "trains", "was lost and is back", "silent", "silent at the end"],
)
def test_a_lane_has_the_states_of_a_replica(processes, ended, expected):
    assert spans(*processes, ended=ended) == expected


def test_a_replica_that_only_serves_was_there_until_the_training_ended():
    statuses = {"ps-0": ReplicaStatus((process(900, 910, 993),))}
    end = Event(event=EventType.END, at=999, kind="succeeded")
    statuses["chief"] = ReplicaStatus((process(900, 910, 998),))
    lanes = lanes_of(statuses, [end], NOW, ended=True)
    assert [each["spans"][-1]["to"] for each in lanes] == [999, 999]


def test_what_was_not_kept_is_lost_and_what_is_done_again_is_repeated():
    chief = [
        Event(event=event, at=at, step=step)
        for event, at, step in [
            (EventType.RESTORE, 805, 0),
            (EventType.READY, 810, 1),
            (EventType.TRAIN, 830, 3),  # and saved
            (EventType.TRAIN, 850, 5),
            (EventType.DETECT, 900, 5),
            (EventType.RESTORE, 925, 3),
            (EventType.READY, 935, 4),
            (EventType.TRAIN, 945, 5),
            (EventType.TRAIN, 965, 7),
        ]
    ]
    expected = [
        ("starting", 800, 810),
        ("training", 810, 830),
        ("lost", 830, 920),
        ("starting", 920, 925),
        ("repeated", 925, 945),
        ("training", 945, None),
    ]
    assert spans(process(800, 810, 880), process(920, 935, NOW), events=chief) == expected
    preempted = [each for each in chief if each.at not in (850, 900)]
    found = spans(process(800, 810, 830), process(920, 935, NOW), events=preempted)
    assert ("training", 810, 830) in found
    assert ("training", 935, None) in found
    alone = [*chief[:4], replace(chief[3], at=925, step=9)]
    found = spans(process(800, 810, 880), process(920, 935, NOW), events=alone)
    assert ("training", 810, 880) in found, "the chief has continued"


def test_a_replica_that_begins_after_others_has_waited_and_a_loss_has_its_reason():
    failed = Event(event=EventType.DETECT, at=905, replica="ps-0", because="signal 9")
    statuses = {
        "ps-0": ReplicaStatus((process(800, 810, 900), process(920, 930, NOW))),
        "chief": ReplicaStatus((process(750, 760, NOW),)),
    }
    [chief, ps] = lanes_of(statuses, [failed], NOW, ended=False)
    assert [each["state"] for each in chief["spans"]] == ["starting", "training"]
    assert ps["spans"][0] == {"from": 750, "to": 800, "state": "waiting", "text": ""}
    assert [each["text"] for each in ps["spans"] if each["text"]] == ["signal 9"]


def chief(event, at, **others):
    return Event(event=event, at=at, replica="chief", **others)


def test_a_decision_that_restarts_several_is_one_mark_besides_the_failure():
    why = "worker-1 was ended by signal 9; it is restarted (1 of 3)"
    died = "was ended by signal 9"
    failed = Event(event=EventType.DETECT, at=19, replica="worker-1", kind="crash", because=died)
    restarts = [
        Event(event=EventType.RESTART, at=20, replica=name, restarts=1, because=why)
        for name in ("worker-1", "chief")
    ]
    shown = [(each["kind"], each["text"]) for each in marks_of([failed, *restarts])]
    assert shown == [
        ("failure", f"worker-1 {died}"),
        ("restart", f"chief and worker-1 restarted: {why}"),
    ]


def test_a_resize_is_one_mark_with_its_reason_and_is_no_restart():
    why = "2 of 3 workers go on: worker-2 has no place"
    resize = Event(event=EventType.RESIZE, at=20, step=7, because=why, workers=3)
    restarts = [
        Event(event=EventType.RESTART, at=20, replica=name, restarts=1, because=why)
        for name in ("worker-1", "chief")
    ]
    [mark] = marks_of([resize, *restarts])
    assert (mark["kind"], mark["text"], mark["step"]) == ("resize", why, 7)


def test_a_training_that_has_failed_is_marked_once_with_the_reason_of_its_task(store):
    failed = Event(event=EventType.DETECT, at=950, replica="worker-0", because="signal 9")
    end = Event(event=EventType.END, at=950, kind="lost", because="it was restarted 0 times")
    log(store, failed, end)
    training = training_of(store, active=False)
    marks = [(each["kind"], each["text"]) for each in training["marks"]]
    assert marks == [("failure", f"training failed: {end.because}")]
    assert training["failure"] == end.because
    assert failure_of([end, chief(EventType.START, 960)]) == "", "it is tried again"
    assert failure_of([replace(end, kind="succeeded")]) == failure_of([]) == ""


def test_of_many_checkpoints_some_are_marked_and_the_last_one_always():
    events = [chief(EventType.SAVE_STALL, at, step=at, seconds=0.1) for at in range(5000)]
    events.append(chief(EventType.PREEMPTED, 2500.5, step=2500))
    found = marks_of(events)
    assert len(found) <= 201
    assert found[-1]["step"] == 4999
    assert [each["step"] for each in found if each["kind"] == "preemption"] == [2500]


def test_a_mark_without_a_step_is_at_the_last_point_before_it():
    restarts = [Event(event=EventType.RESTART, at=at, replica="ps-0") for at in (5, 15, 25)]
    preempted = chief(EventType.PREEMPTED, 24, step=250)
    marks = marks_of([*restarts, preempted], [(10, 100), (20, 200)])
    assert [each["step"] for each in marks] == [0, 100, 250, 250]


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


def training_of(store, run="one", now=NOW, **how):
    [training] = run_data(store, "flats", run, now, **how)["trainings"]
    return training


def log(store, *events, task="runs/one/train"):
    """Write the event log that is there when a group has ended."""
    content = {"events": [json.loads(each.to_json()) for each in events]}
    store.put(f"{task}/events.json", json.dumps(content).encode())


def report(store, replica, *processes):
    status = ReplicaStatus(processes).to_json()
    store.put(f"runs/one/train/{status_key(replica)}", status)


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
        "Model card (evaluate)": "files/flats/runs/one/evaluate/card.html",
        "Statistics of the data (train)": "files/flats/datasets/abc/statistics.html",
    }
    folder = f"{store.url}/runs/one"
    assert {each["title"]: each["text"] for each in data["files"] if "text" in each} == {
        "TensorBoard (train)": f"tensorboard --load_fast=false --logdir {folder}/train/tensorboard",
        "Output": f"{folder}/",
    }
    json.dumps(data, allow_nan=False)


def accuracy(value, model, **others):
    """What ``evaluate`` writes of the trained model at that URL."""
    return {
        "metrics": {"loss": 0.1, "auc": 0.9, "accuracy": value},
        "intervals": {"accuracy": [value - 0.01, value + 0.01], "auc": ["NaN", "NaN"]},
        "verdicts": [{"metric": "accuracy"}],
        "failures": [],
        "passed": True,
        "candidate": {"model": model, "evaluated on": "file:///data"},
        **others,
    }


def evaluated(store, run, value, **others):
    """A training in that run, evaluated; returns the URL of the model."""
    model = f"{store.url}/runs/{run}/train/model.json"
    document = accuracy(value, model, **others)
    store.put(f"runs/{run}/evaluate/metrics.json", json.dumps(document).encode())
    return model


def export(store, run, model, number, task="export"):
    version = f"{store.url}/serving/{number}"
    files = {"saved_model.pb": StoredFile(bytes=1, sha256="")}
    manifest = Manifest(files=files, about={"model": model}).to_json().encode()
    store.put(f"serving/{number}/manifest.json", manifest)
    result = Result(attempt="1", value=version).to_json().encode()
    store.put(f"runs/{run}/{task}/result.json", result)
    return version


def test_the_outcome_of_a_training_is_its_evaluation_against_what_was_served(store):
    outcome = training_of(store)["outcome"]
    assert outcome == {"evaluation": None, "version": None, "served": False}
    earlier = export(store, "zero", evaluated(store, "zero", 0.8), 3)
    model = evaluated(store, "one", 0.9, served=earlier)
    outcome = training_of(store)["outcome"]
    assert (outcome["version"], outcome["served"]) == (None, False)
    assert outcome["evaluation"] == {
        "card": "files/flats/runs/one/evaluate/card.html",
        "metric": "accuracy",
        "value": 0.9,
        "interval": [0.89, 0.91],
        "compared": {"version": 3, "value": 0.8, "same_data": True},
        "passed": True,
        "reason": "",
    }
    export(store, "one", model, 4)
    outcome = training_of(store)["outcome"]
    assert (outcome["version"], outcome["served"]) == (4, True), "the newest, as none is promoted"
    promote(store.child("serving"), 3, by="somebody")
    assert training_of(store)["outcome"]["served"] is False


def test_each_training_of_a_mapped_task_has_the_version_of_its_own_mapped_export(store):
    for number in (0, 1):
        task = f"train/{number}"
        log(store, chief(EventType.END, 990.0, step=300), task=f"runs/two/{task}")
        store.put(f"runs/two/{task}/progress.jsonl", store.get("runs/one/train/progress.jsonl"))
        model = f"{store.url}/runs/two/{task}/model.json"
        export(store, "two", model, number + 4, task=f"export/{number}")
    trainings = run_data(store, "flats", "two", NOW)["trainings"]
    found = [(each["outcome"]["version"], each["outcome"]["served"]) for each in trainings]
    assert found == [(4, False), (5, True)]


def test_a_refused_model_has_the_reasons_and_what_the_gate_has_compared(store):
    baseline = {"url": f"{store.url}/serving/7", "metrics": {"accuracy": 0.95}}
    export(store, "seven", "file:///elsewhere/model.json", 7)
    refused = {"passed": False, "failures": ["accuracy is 0.9, worse"], "baseline": baseline}
    evaluated(store, "one", 0.9, **refused)
    found = training_of(store)["outcome"]["evaluation"]
    assert (found["passed"], found["reason"]) == (False, "accuracy is 0.9, worse")
    assert found["compared"] == {"version": 7, "value": 0.95, "same_data": True}


def test_a_run_that_reused_a_training_and_an_export_has_their_outcome(store):
    model = evaluated(store, "one", 0.9)
    export(store, "one", model, 4)
    for task, key in (("train", "progress.jsonl"), ("evaluate", "metrics.json"), ("export", "")):
        reused = {"run": "one", "prefix": f"{store.url}/runs/one/{task}"}
        store.put(f"runs/two/{task}/reused.json", json.dumps(reused).encode())
        if key:
            store.put(f"runs/two/{task}/{key}", store.get(f"runs/one/{task}/{key}"))
    outcome = training_of(store, "two")["outcome"]
    assert (outcome["evaluation"]["value"], outcome["version"]) == (0.9, 4)
    store.delete("serving/4/manifest.json")
    assert training_of(store, "two")["outcome"]["version"] is None, "retention has removed it"


def step_time(seconds, communication=None):
    return StepTime(seconds=seconds, input=0.001, communication=communication)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, []),
        ({"chief": (0.1, None)}, []),
        ({"chief": (0.1, None), "worker-0": (0.14, None)}, []),
        ({"worker-0": (0.1, 0.01), "worker-1": (0.3, 0.01)}, [("worker-1", 0.29, 0.29 / 0.09)]),
        # All of their steps take equally long, because they wait for each other.
        (
            {"chief": (0.1, 0.06), "worker-9": (0.1, 0.065), "worker-10": (0.1, 0.01)},
            [("worker-10", 0.09, 0.09 / 0.04)],
        ),
        (
            {**{f"worker-{n}": (0.1, None) for n in range(5)}, "a": (0.2, None), "b": (0.3, None)},
            [("b", 0.3, 3), ("a", 0.2, 2)],
        ),
    ],
)
def test_replicas_with_much_longer_steps_are_slow_and_communication_of_peers_does_not_count(
    times, expected
):
    times = {name: step_time(*each) for name, each in times.items()}
    peers = {
        name: ReplicaStatus((replace(process(890), step_times={name: each}),))
        for name, each in times.items()
    }
    found = stragglers(own_times(peers))
    assert [each.replica for each in found] == [name for name, *_ in expected]
    for each, (_, seconds, ratio) in zip(found, expected, strict=True):
        assert (each.seconds, each.times) == (pytest.approx(seconds), pytest.approx(ratio))


def test_workers_of_a_coordinator_wait_for_no_other_so_that_all_of_a_step_is_their_own():
    times = {"worker-0": step_time(0.1, 0.08), "worker-1": step_time(0.11, 0.01)}
    statuses = dict.fromkeys(times, ReplicaStatus((process(890, 900, NOW),)))
    statuses["chief"] = ReplicaStatus((replace(process(890, seen=NOW), step_times=times),))
    assert stragglers(own_times(statuses)) == []
    statuses["chief"].processes[0].step_times["worker-1"] = step_time(0.2)
    assert [each.replica for each in stragglers(own_times(statuses))] == ["worker-1"]
    statuses["worker-1"] = ReplicaStatus((process(890, 900, NOW - GONE_AFTER),))
    assert stragglers(own_times(statuses)) == [], "it is gone"


def test_the_last_times_of_steps_are_shown_also_those_that_a_coordinator_reports(store):
    for name, seen, seconds in (("chief", NOW, 0.1), ("worker-9", NOW - 20, 9.0)):
        times = {"worker-9": step_time(seconds)}
        report(store, name, replace(process(890, 900, seen), step_times=times))
    [shown] = training_of(store)["step_times"]
    assert (shown["replica"], shown["seconds"]) == ("worker-9", 0.1)
    report(
        store, "worker-10", replace(process(890, 900, NOW), step_times={"worker-10": step_time(1)})
    )
    assert [each["replica"] for each in training_of(store)["stragglers"]] == ["worker-10"]


def test_the_cost_of_a_run_is_shown_from_the_log_of_its_ended_attempts(store):
    assert training_of(store)["goodput"]["core_hours"] is None
    known = {"core_hours": {"chief": 1.5, "worker": 6}, "cost": 0.17}
    store.put("runs/one/train/events.json", json.dumps({"events": [], **known}).encode())
    assert training_of(store)["goodput"].items() >= known.items()


def test_what_the_launcher_decides_is_marked_while_it_trains_and_only_once(store):
    report(store, "chief", process(890, 900, 940), process(950, 960, NOW))
    restart = chief(EventType.RESTART, 945, because="signal 9")
    store.put("runs/one/train/events-group.jsonl", restart.to_json().encode())
    for _ in range(2):
        training = training_of(store)
        assert training["goodput"]["restarts"] == 1
        [mark] = training["marks"]
        assert (mark["at"], mark["text"]) == (945, "chief restarted: signal 9")
        log(store, restart)  # when its group has ended


def test_a_suspended_training_has_lost_nothing_and_waits(store):
    assert (training_of(store)["suspended"], training_of(store)["to_suspend"]) == (False, False)
    store.put("runs/one/train/size.json", b'{"suspended": true}')
    assert (training_of(store)["suspended"], training_of(store)["to_suspend"]) == (False, True)
    why = "suspended by hand after step 200"
    resize = Event(event=EventType.RESIZE, at=930, kind="suspended", because=why)
    store.put("runs/one/train/events-group.jsonl", resize.to_json().encode())
    for replica in ("chief", "worker-9", "worker-10"):
        report(store, replica, process(890, 900, NOW - GONE_AFTER - 1))
    training = training_of(store)
    assert (training["suspended"], training["running"], training["ended"]) == (True, False, False)
    for lane in training["lanes"]:
        last = lane["spans"][-1]
        assert (last["state"], last["to"], last["text"]) == ("waiting", None, why)
    assert not training_of(store, active=False)["suspended"]


@pytest.mark.parametrize("part", ["curves", "epochs"])
def test_no_extreme_of_any_metric_is_lost_where_points_stand_for_several(store, part):
    curves = Curves(3000, "")
    for step in range(3000):
        epoch = step if part == "epochs" else None
        accuracy = {3: 0.0, 4: 1.0}.get(step, 0.9)
        metrics = {"loss": step % 7, "accuracy": accuracy, "rate": 0.1}
        curves.add(Point(at=float(step), step=step, epoch=epoch, metrics=metrics))
    store.put("runs/one/train/progress.jsonl", curves.to_bytes())
    found = training_of(store)[part]
    assert set(found["values"]) == {"loss", "accuracy", "rate"}
    assert (min(found["lowest"]["loss"]), max(found["highest"]["loss"])) == (0, 6)
    assert (min(found["lowest"]["accuracy"]), max(found["highest"]["accuracy"])) == (0.0, 1.0)
    assert "rate" not in {**found["lowest"], **found["highest"]}, "it is constant"


def test_an_evaluator_that_lags_behind_supersedes_no_metrics_of_epochs(store):
    measured = {"step": 100, "at": 930.0, "metrics": {"loss": 0.4}}
    store.put("runs/one/train/evaluations/0001-0000000100.json", json.dumps(measured).encode())
    training = training_of(store)
    [epochs, evaluations] = training["epochs"], training["evaluations"]
    assert (epochs["step"], epochs["values"]) == ([150], {"val_loss": [0.5]})
    assert (evaluations["step"], evaluations["values"]) == ([100], {"val_loss": [0.4]})


def test_a_training_that_has_ended_does_not_run_and_a_run_that_reused_it_shows_its_curves(store):
    earlier, again = store.child("runs/one/train"), store.child("runs/two/train")
    log(store, chief(EventType.END, 990.0, step=300))
    data = run_data(store, "flats", "one", NOW)
    assert data["trainings"][0]["running"] is False
    assert data["trainings"][0]["marks"][-1]["kind"] == "end"
    assert "Event log (train)" in [each["title"] for each in data["files"]]
    again.put("reused.json", json.dumps({"run": "one", "prefix": earlier.url}).encode())
    for key in ("progress.jsonl", "events.json"):
        again.put(key, earlier.get(key))
    files = run_data(store, "flats", "two", NOW)["files"]
    assert files[2]["text"].endswith(f"{earlier.url}/tensorboard")
    reused = training_of(store, "two")
    assert reused["curves"]["step"] == [0, 100, 200]
    assert reused["reused_from"] == "one"
    assert (reused["running"], reused["lanes"], reused["replicas"]) == (False, [], [])


def test_no_replica_of_a_run_that_has_ended_is_lost_for_ever(store):
    """It was marked as failed, so that its log has no end."""
    for active, state in ((True, "lost"), (False, "training")):
        training = training_of(store, now=NOW + 10 * GONE_AFTER, active=active)
        assert {each["spans"][-1]["state"] for each in training["lanes"]} == {state}


def test_what_a_run_has_not_written_or_not_as_expected_is_left_out(store):
    assert run_data(store, "flats", "another", NOW)["trainings"] == []
    store.put("runs/one/train/replicas/ps-0.json", b"[]")
    assert "ps-0" not in [each["replica"] for each in training_of(store)["lanes"]]


def test_a_store_that_fails_says_why_and_a_slow_one_is_asked_once_and_answers_later():
    release, asked, answers = threading.Event(), [], Answers()

    def slow():
        asked.append(1)
        release.wait(60)
        return 2

    def fails():
        raise StoreUnavailable("connection refused")

    with pytest.raises(StoreUnavailable):
        answers.get("another", fails)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            answers.get("run", slow, patience=0.01)
    release.set()
    assert answers.get("run", slow, patience=60) == 2
    assert asked == [1]
