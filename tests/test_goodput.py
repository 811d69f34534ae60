"""The goodput of an event log: examples of trainings with 10 steps a second."""

import json
from pathlib import Path

import pytest

from aerotrain.contract.event_log import Event, EventType
from aerotrain.store import open_store
from aerotrain_airflow.cost import core_hours, cost_of, price_list
from aerotrain_airflow.goodput import goodput_of, merged, record
from support.described_jobs import SERVED, job


def entry(
    event: EventType, at: float, step: int | None = None, seconds: float = 0.0, **more: str
) -> Event:
    return Event(event=event, at=at, step=step, seconds=seconds, **more)


CALM = [
    entry(EventType.START, 0),
    entry(EventType.IMPORT, 8, seconds=8),
    entry(EventType.RESTORE, 10, step=0),
    entry(EventType.TRAIN, 50, step=400, seconds=40),
    entry(EventType.SAVE_STALL, 50, step=400, seconds=0.5),
    entry(EventType.TRAIN, 90, step=795, seconds=39.5),
    entry(EventType.END, 90),
]

#: Killed 10 s after its last checkpoint, restarted 10 s later.
KILLED = [
    entry(EventType.START, 0),
    entry(EventType.RESTORE, 10, step=0),
    entry(EventType.TRAIN, 50, step=400, seconds=40),
    entry(EventType.DETECT, 60, step=500, replica="chief"),
    entry(EventType.RESTART, 60, replica="chief"),
    entry(EventType.RESTORE, 70, step=400),
    entry(EventType.TRAIN, 110, step=800, seconds=40),
    entry(EventType.END, 110),
]


def test_an_undisturbed_training_loses_only_its_start_and_its_stalls() -> None:
    found = goodput_of(CALM)
    assert found.goodput == pytest.approx(79.5 / 90, abs=0.01)
    assert found.lost["start-up"] == 10
    assert found.lost["save stall"] == 0.5
    assert (found.lost["recovery"], found.steps_twice, found.restarts) == (0, 0, 0)


def test_a_kill_costs_the_restart_and_the_repeated_steps() -> None:
    found = goodput_of(KILLED)
    assert found.goodput == pytest.approx(80 / 110)
    assert found.lost == pytest.approx(
        {
            "start-up": 10,
            "recovery": 10,
            "save stall": 0,
            "rework": 10,
            "lost work": 0,
            "other": 0,
        }
    )
    assert (found.steps, found.steps_twice, found.restarts) == (800, 100, 1)
    assert str(found).startswith("73% of 110 s were training steps that count")
    assert "recovery from failures 10 s" in str(found)
    assert "100 of 800 steps were done twice" in str(found)


#: The chief compiles for 8 s. It is killed while it trains, restarted, killed while it compiles,
#: and its task is tried again.
COMPILED = [
    entry(EventType.START, 0),
    entry(EventType.START, 1, replica="chief"),
    entry(EventType.RESTORE, 10, step=0),
    entry(EventType.READY, 20, step=20),
    entry(EventType.TRAIN, 58, step=400, seconds=38),
    entry(EventType.DETECT, 60, step=400, replica="chief"),
    entry(EventType.RESTART, 60, replica="chief"),
    entry(EventType.START, 61, replica="chief"),
    entry(EventType.RESTORE, 65, step=400),
    entry(EventType.DETECT, 70, step=400, replica="chief"),
    entry(EventType.END, 70, kind="lost"),
    entry(EventType.START, 80),
    entry(EventType.START, 81, replica="chief"),
    entry(EventType.RESTORE, 85, step=400),
    entry(EventType.READY, 95, step=420),
    entry(EventType.TRAIN, 133, step=800, seconds=38),
    entry(EventType.END, 133),
]


def test_starts_last_until_the_first_execution_without_the_time_of_its_steps() -> None:
    found = goodput_of(COMPILED)
    assert found.lost["start-up"] == pytest.approx(20 - 2)
    assert found.lost["recovery"] == pytest.approx((65 - 60) + (95 - 70 - 2))
    assert found.lost["lost work"] == pytest.approx((60 - 58) + (70 - 65)), "it did not get ready"
    assert found.lost["other"] == pytest.approx(0)
    assert found.goodput == pytest.approx(80 / 133)
    assert (found.steps, found.steps_twice) == (800, 0)


def test_a_training_of_one_execution_has_the_pace_of_that() -> None:
    only = [*COMPILED[:4], entry(EventType.TRAIN, 20, step=20), entry(EventType.END, 20)]
    found = goodput_of(only)
    assert (found.goodput, found.lost["start-up"]) == (pytest.approx(0.5), 10)


#: A step takes 10 s. The one after step 3, which is saved, hangs; that after step 6 is killed, and
#: so is, after a restart, the same one again, which ends the job.
SLOW = [
    entry(EventType.START, 0),
    entry(EventType.RESTORE, 10, step=0),
    entry(EventType.READY, 20, step=1),
    entry(EventType.TRAIN, 40, step=3, seconds=20),
    entry(EventType.SAVE_STALL, 41, step=3, seconds=1),
    entry(EventType.DETECT, 101, step=3, replica="chief", kind="hang"),
    entry(EventType.RESTART, 101, replica="chief"),
    entry(EventType.RESTORE, 106, step=3),
    entry(EventType.READY, 116, step=4),
    entry(EventType.TRAIN, 136, step=6, seconds=20),
    entry(EventType.DETECT, 143, step=6, replica="chief"),
    entry(EventType.RESTORE, 148, step=3),
    entry(EventType.READY, 158, step=4),
    entry(EventType.TRAIN, 178, step=6, seconds=20),
    entry(EventType.DETECT, 185, step=6, replica="chief"),
    entry(EventType.END, 185, kind="lost"),
]


def test_the_time_of_a_step_that_a_failure_has_cut_off_is_lost_work() -> None:
    found = goodput_of(SLOW)
    assert found.lost == pytest.approx(
        {
            "start-up": 10,
            "recovery": 5 + 5,
            "save stall": 1,
            "rework": 30,
            "lost work": (101 - 41) + (143 - 136) + (185 - 178),
            "other": 0,
        }
    )
    assert "steps that a failure cut off 74 s" in str(found)


#: All of it is done again, and it saves while it is restarted.
SHORT = [
    entry(EventType.START, 0),
    entry(EventType.RESTORE, 1.04, step=0),
    entry(EventType.TRAIN, 2.26, step=10, seconds=1.22),
    entry(EventType.DETECT, 2.26, replica="chief"),
    entry(EventType.SAVE_STALL, 3.3, step=10, seconds=1.04),
    entry(EventType.RESTORE, 3.3, step=0),
    entry(EventType.TRAIN, 4.04, step=10, seconds=0.74),
    entry(EventType.END, 4.04),
]


@pytest.mark.parametrize("events", [CALM, KILLED, COMPILED, SLOW, SHORT])
def test_what_counts_and_what_was_lost_are_all_of_the_time(events: list[Event]) -> None:
    found = goodput_of(events).to_dict()
    seconds = [found["goodput"] * found["wall_seconds"], *found["lost_seconds"].values()]
    assert min(seconds) >= 0
    assert sum(seconds) == pytest.approx(found["wall_seconds"], abs=0.01)


@pytest.mark.parametrize(("stop", "other"), [(0, 0), (20, 20)])
def test_a_varying_pace_does_not_lower_the_goodput_and_a_stop_does(
    stop: float, other: float
) -> None:
    seconds = [8, 8, 8, 8, 11, 12, 12, 10, 10 + stop]
    events, at = [entry(EventType.RESTORE, 0, step=0)], 0.0
    for number, each in enumerate(seconds, 1):
        events.append(entry(EventType.TRAIN, at := at + each, step=100 * number, seconds=each))
    assert goodput_of(events).lost["other"] == pytest.approx(other, abs=1)


def test_a_worker_that_restarts_while_the_chief_trains_is_no_outage() -> None:
    worker = [
        entry(EventType.DETECT, 30, step=200, replica="worker-1"),
        entry(EventType.RESTART, 30, replica="worker-1"),
    ]
    found = goodput_of(merged(CALM, worker))
    assert (found.lost["recovery"], found.restarts) == (0, 1)


def test_a_job_that_does_not_train_has_no_goodput() -> None:
    found = goodput_of([entry(EventType.START, 5), entry(EventType.END, 8)])
    assert (found.goodput, found.to_dict()["wall_seconds"], str(found)) == (None, 3, "3 s in all")


def test_a_closed_event_log_holds_events_of_launcher_chief_and_earlier_tries(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path.as_uri())
    of_chief = (EventType.RESTORE, EventType.TRAIN)
    inside = [each for each in KILLED if each.event in of_chief]
    outside = [each for each in KILLED[:-1] if each.event not in of_chief]
    store.put("events-chief.jsonl", "\n".join(each.to_json() for each in inside).encode())
    described = job("parameter_server", SERVED)
    first = record(outside, store, 100, described, {})
    assert first is not None
    later = record([entry(EventType.START, 105)], store, 110, described, {})
    assert later is not None
    assert (later.wall, later.steps_twice, later.restarts) == (110, 100, 1)
    whole = json.loads(store.get("events.json"))
    assert whole["goodput"] == pytest.approx(80 / 110, abs=1e-3)
    assert len(whole["events"]) == len(KILLED) + 2


HOUR = 3600

#: A group that waits for an hour in its queue, and trains for four.
QUEUED = [
    entry(EventType.START, 0),
    entry(EventType.START, HOUR, replica="chief"),
    entry(EventType.END, 5 * HOUR),
]


@pytest.mark.parametrize(
    ("more", "chief", "workers", "ps"),
    [
        ([], 4, 16, 4),
        # A worker is gone for an hour, and a chief that starts again starts no other replica.
        (
            [
                entry(EventType.DETECT, 2 * HOUR, replica="worker-1"),
                entry(EventType.START, 2.5 * HOUR, replica="chief"),
                entry(EventType.RESTART, 3 * HOUR, replica="worker-1"),
            ],
            *(4, 14, 4),
        ),
        # The next attempt, of which no event of a chief is known, never ran.
        ([entry(EventType.START, 6 * HOUR), entry(EventType.END, 9 * HOUR)], 4, 16, 4),
        # The next one takes two hours more, with all replicas.
        (
            [
                entry(EventType.DETECT, 5 * HOUR, replica="worker-0"),
                entry(EventType.START, 6 * HOUR),
                entry(EventType.START, 6 * HOUR, replica="chief"),
                entry(EventType.END, 8 * HOUR),
            ],
            *(6, 24, 6),
        ),
        # One worker for an hour, and suspended for another one.
        (
            [
                Event(event=EventType.RESIZE, at=2 * HOUR, workers=1),
                Event(event=EventType.RESIZE, at=3 * HOUR, workers=1, kind="suspended"),
                Event(event=EventType.RESIZE, at=4 * HOUR, workers=2),
                *(
                    entry(EventType.RESTART, 4 * HOUR, replica=name)
                    for name in ("chief", "worker-0", "worker-1", "ps-0")
                ),
            ],
            *(3, 10, 3),
        ),
        # Evicted by its queue for an hour: what is created again waits there.
        (
            [
                Event(event=EventType.RESIZE, at=2 * HOUR, workers=2, kind="queued"),
                *(
                    entry(EventType.RESTART, 2 * HOUR, replica=name, kind="queued")
                    for name in ("chief", "worker-0", "worker-1", "ps-0")
                ),
                entry(EventType.START, 3 * HOUR, replica="chief"),
            ],
            *(3, 12, 3),
        ),
    ],
)
def test_a_run_has_the_core_hours_of_its_replicas_while_they_ran(
    more: list[Event], chief: float, workers: float, ps: float
) -> None:
    replicas = [
        {"role": "chief", "resources": {"cpu": 1}},
        {"role": "worker", "count": 2, "resources": {"cpu": 2}},
        {"role": "ps", "resources": {"cpu": 1}},
    ]
    found = core_hours(merged(QUEUED, more), job("parameter_server", replicas))
    assert found == pytest.approx({"chief": chief, "worker": workers, "ps": ps})


def test_a_run_has_a_cost_if_each_of_its_roles_has_a_price(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put("events-chief.jsonl", QUEUED[1].to_json().encode())
    alone = job("one_device", [{"role": "chief", "resources": {"cpu": 2}}])
    found = record([QUEUED[0], QUEUED[2]], store, 0, alone, price_list("chief = 0.5,worker=1"))
    assert found is not None
    assert str(found).endswith(" in all; 8.00 core hours (chief 8.00), which cost 4.00")
    assert json.loads(store.get("events.json"))["cost"] == 4
    assert cost_of({"chief": 8, "ps": 1}, {"chief": 0.5}) is None


def test_the_time_after_the_end_of_its_group_does_not_count_and_no_training_has_no_log(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path.as_uri())
    described = job("one_device", [{"role": "chief"}])
    assert record([entry(EventType.START, 5)], store, 9, described, {}) is None
    assert not list(store.list())
    group = [entry(EventType.START, 0), entry(EventType.DETECT, 3), entry(EventType.END, 10)]
    found = record(group, store, 40, described, {})  # when the deferred task resumes
    assert found is not None
    assert found.wall == 10
