"""The curves of a training: points in a limited number, without losing an extreme."""

import json
import math

import pytest

from aerotrain.contract.curves import MOST_POINTS, Curves, Point
from aerotrain.store import open_store
from aerotrain.training.background.writers import CurveWriter


def point(step, loss=0.5, **others):
    return Point(at=1000.0 + step, step=step, metrics={"loss": loss}, **others)


def curves_of(losses):
    curves = Curves(len(losses), "file:///data")
    for step, loss in enumerate(losses):
        curves.add(point(step, loss))
    return curves


def test_very_many_points_become_some_hundred_that_have_the_extremes_and_the_last_value():
    losses = [0.5] * 100_000
    losses[12_345], losses[77_777] = 9.0, 0.1
    found = curves_of(losses).during.points
    assert MOST_POINTS // 2 <= len(found) <= MOST_POINTS
    assert max(each.highest["loss"] for each in found) == 9.0
    assert min(each.lowest["loss"] for each in found) == 0.1
    assert found[-1].step == 99_999
    assert sum(each.merged for each in found) == 100_000


def test_a_metric_of_every_other_epoch_keeps_its_values():
    curves = Curves(2000, "")
    for epoch in range(2000):
        metrics = {"loss": 0.5, **({} if epoch % 2 else {"val_loss": float(epoch)})}
        curves.add(Point(at=1000.0 + epoch, step=epoch, metrics=metrics, epoch=epoch))
    found = [each.metrics["val_loss"] for each in curves.of_epochs.points]
    assert found == sorted(set(found))


def test_points_stand_for_equally_many_measured_ones():
    widths = {each.merged for each in curves_of([0.5] * 5000).during.points[:-1]}
    assert len(widths) == 1


@pytest.mark.parametrize("count", [1, MOST_POINTS, 7 * MOST_POINTS + 3])
def test_curves_are_read_as_they_were_written(count):
    curves = curves_of([0.25] * count)
    curves.add(Point(at=9e9, step=count, metrics={"accuracy": 0.5}, epoch=0))
    read = Curves.from_bytes(curves.to_bytes())
    assert (read.points, read.steps, read.data) == (curves.points, count, "file:///data")


def test_values_that_are_not_finite_are_left_out_because_json_has_none():
    curves = curves_of([math.nan, 1.0, math.inf] * MOST_POINTS)
    lines = curves.to_bytes().decode().splitlines()
    values = [json.loads(each, parse_constant=pytest.fail) for each in lines[1:]]
    assert {each["highest"]["loss"] for each in values} == {1.0}


def test_a_line_that_was_cut_off_is_skipped():
    content = curves_of([0.5, 0.4]).to_bytes()
    assert [each.step for each in Curves.from_bytes(content[:-20]).points] == [0]
    assert Curves.from_bytes(b"").points == []


class Immediately:
    """An uploader that runs each upload in the caller's thread."""

    def send(self, _name, upload):
        upload()


def writer(store, times):
    return CurveWriter(
        store,
        Immediately(),
        store.put,
        steps=100,
        data="file:///data",
        clock=lambda: times[0],
        now=lambda: times[0],
    )


def test_a_restarted_chief_adds_to_the_curves_of_the_process_before_it(tmp_path):
    store, times = open_store(tmp_path.as_uri()), [0.0]
    for first in (0, 40):
        curves = writer(store, times)
        curves.add(first, {"loss": 1.0}, at_once=True)
        times[0] += 6.0
        curves.add(first + 10, {"loss": 0.9}, at_once=True)
    found = Curves.from_bytes(store.get("progress.jsonl"))
    assert [each.step for each in found.points] == [0, 10, 40, 50]


def test_every_epoch_has_a_point(tmp_path):
    store, times = open_store(tmp_path.as_uri()), [0.0]
    curves = writer(store, times)
    for epoch in range(5):
        curves.add_epoch(epoch, 20 * epoch, {"loss": 0.5})
    curves.publish()
    found = Curves.from_bytes(store.get("progress.jsonl"))
    assert [each.epoch for each in found.of_epochs.points] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("executions", "seconds", "points"),
    [(12, 0.01, 12), (90, 0.001, 90), (590, 0.101, 590), (20_000, 0.003, 900), (7200, 5.0, 7200)],
    ids=["a second", "very short executions", "a minute", "a minute of short ones", "ten hours"],
)
def test_each_execution_of_a_short_training_has_a_point(tmp_path, executions, seconds, points):
    times = [1000.0]
    curves, due = writer(open_store(tmp_path.as_uri()), times), 0
    for _ in range(executions):
        due += curves.due()
        times[0] += seconds
    assert due == pytest.approx(points, rel=0.02)
