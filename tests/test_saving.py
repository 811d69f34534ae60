"""Saving in the background: the queue, retention, frequency, and messages."""

import json
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError, SupersededError, TemporaryError
from aerotrain.contract.event_log import EventType, read
from aerotrain.contract.layout import CHIEF_LOG
from aerotrain.lease import Lease
from aerotrain.store import StoreUnavailable, open_store, publish
from aerotrain.training.background.writers import EventWriter, Uploader
from aerotrain.training.checkpoints.retention import (
    Name,
    Retention,
    complete_checkpoints,
    highest_token,
    kept,
)
from aerotrain.training.checkpoints.snapshot import (
    Snapshot,
    metric_state_of,
    metric_state_to_file,
    random_state,
    restore_random_state,
)

pytestmark = pytest.mark.process

FILES = {"checkpoint.index": {"bytes": 0, "sha256": "0"}}
MANIFEST = json.dumps({"version": 1, "files": FILES, "about": {}}).encode()


def test_of_queued_uploads_of_one_name_only_the_newest_runs():
    ran, begun, opened = [], threading.Event(), threading.Event()

    def first():
        begun.set()
        assert opened.wait(30)
        ran.append("first")

    uploader = Uploader(deadline=60)
    uploader.send("checkpoint", first)
    assert begun.wait(30)
    for name in ("second", "third"):
        uploader.send("checkpoint", lambda name=name: ran.append(name))
    assert not uploader.wait(0)
    opened.set()
    assert uploader.wait(30)
    assert ran == ["first", "third"]


def test_an_upload_that_failed_in_a_store_outage_is_repeated_after_it(capsys):
    away, ran = [True], []
    tried = threading.Event()

    def errand():
        if away[0]:
            tried.set()
            raise StoreUnavailable("s3://digits did not answer")
        ran.append("brought")

    uploader = Uploader(deadline=60)
    uploader.send("checkpoint", errand)
    assert tried.wait(30)
    away[0] = False
    assert uploader.wait(30)
    uploader.check()
    assert ran == ["brought"]
    said = capsys.readouterr().out
    assert said.count("warning: s3://digits did not answer; training continues") == 1


def test_a_store_outage_beyond_its_deadline_is_an_error():
    now, tried = [0.0], threading.Semaphore(0)

    def errand():
        tried.release()
        raise StoreUnavailable("s3://digits did not answer")

    uploader = Uploader(deadline=60, clock=lambda: now[0])
    uploader.send("checkpoint", errand)
    assert tried.acquire(timeout=30)
    assert tried.acquire(timeout=30), "the second try comes when the first has failed"
    now[0] = 59.0
    uploader.check()
    now[0] = 61.0
    with pytest.raises(TemporaryError, match="failed for more than 60 s: s3://digits did not"):
        uploader.check()
    assert not uploader.wait(30)


def test_a_final_error_of_an_upload_is_raised_in_the_training_thread():
    def errand():
        raise FinalError("kernel is no finite number")

    uploader = Uploader(deadline=60)
    uploader.send("checkpoint", errand)
    assert not uploader.wait(30)
    with pytest.raises(FinalError, match="kernel is no finite number"):
        uploader.check()


@pytest.mark.parametrize(
    ("losses", "names"),
    [
        ({}, {30, 40}),
        ({10: 0.5, 20: 0.1, 40: 0.3}, {20, 30, 40}),
        ({40: 0.1, 10: 0.5}, {30, 40}),
    ],
)
def test_the_newest_checkpoints_and_the_best_one_are_kept(losses, names):
    found = [Name(1, step) for step in (40, 10, 30, 20)]
    losses = {Name(1, step): loss for step, loss in losses.items()}
    assert kept(found, losses, 2) == {Name(1, step) for step in names}


def test_the_newest_checkpoint_has_the_highest_token_whatever_its_step(tmp_path):
    store = open_store(tmp_path.as_uri())
    for name in ("0000000900", "0001-0000000500", "0002-0000000310", "10000-0000000001", "others"):
        store.put(f"checkpoints/{name}/manifest.json", b"{}")
    store.put("checkpoints/0003-0000000200/checkpoint.index", b"cut short")
    names = complete_checkpoints(store)
    assert names == [Name(0, 900), Name(1, 500), Name(2, 310), Name(10000, 1)]
    assert [str(name) for name in names[:2]] == ["0000000900", "0001-0000000500"]
    assert highest_token(store) == 10000


def test_a_chief_without_its_lease_deletes_no_checkpoint_of_its_successor(tmp_path):
    store = open_store(tmp_path.as_uri())
    for name in ("0001-0000000500", "0001-0000000600", "0002-0000000310", "0002-0000000320"):
        store.put(f"checkpoints/{name}/manifest.json", MANIFEST)
    store.put("checkpoints/0002-0000000330/checkpoint.index", b"on its way")
    frozen = Retention(store, keep=1, token=1)
    frozen.drop()
    assert complete_checkpoints(store) == [Name(1, 600), Name(2, 310), Name(2, 320)]
    assert store.exists("checkpoints/0002-0000000330/checkpoint.index")
    Retention(store, keep=1, token=2).drop()
    assert complete_checkpoints(store) == [Name(2, 320)]


def test_a_chief_without_its_lease_publishes_no_checkpoint(tmp_path):
    store, folder = open_store((tmp_path / "store").as_uri()), tmp_path / "made"
    lease = Lease(store, attempt="first", restarts=0, place="here")
    successor = Lease(store, attempt="first", restarts=1, place="here")
    lease.take()
    folder.mkdir()
    (folder / "checkpoint.index").write_bytes(b"weights")
    publish(store, folder, "checkpoints/0001-0000000040", {}, lease.check)
    successor.take()
    with pytest.raises(SupersededError):
        publish(store, folder, "checkpoints/0001-0000000080", {}, lease.check)
    assert complete_checkpoints(store) == [Name(1, 40)]


def test_a_lost_lease_is_raised_in_the_training(tmp_path):
    store = open_store(tmp_path.as_uri())
    lease = Lease(store, attempt="first", restarts=0, place="here")
    lease.take()
    uploader = Uploader(deadline=60)
    writer = EventWriter(store, uploader, lease.put)
    writer.note(EventType.START)
    assert uploader.wait(30)
    Lease(store, attempt="first", restarts=1, place="there").take()
    writer.note(EventType.END)
    assert not uploader.wait(30)
    with pytest.raises(SupersededError, match="launch first on there took over"):
        uploader.check()
    assert [each.event for each in read(store.get(CHIEF_LOG).decode().splitlines())] == [
        EventType.START
    ]


def test_the_metrics_of_the_evaluator_decide_which_checkpoint_is_the_best(tmp_path):
    store = open_store(tmp_path.as_uri())
    for step, loss in ((10, 0.4), (20, 0.2), (30, 0.3)):
        store.put(f"checkpoints/{step:010d}/manifest.json", MANIFEST)
        evaluation = json.dumps({"step": step, "metrics": {"loss": loss}}).encode()
        store.put(f"evaluations/{step:010d}.json", evaluation)
    store.put("checkpoints/0000000035/checkpoint.index", b"cut short")
    retention = Retention(store, keep=1, token=1)
    store.put("checkpoints/0000000040/manifest.json", MANIFEST)
    retention.drop()
    assert complete_checkpoints(store) == [Name(0, 20), Name(0, 40)]
    assert not list(store.list("checkpoints/0000000035"))


def test_the_event_log_continues_after_the_events_of_an_earlier_process(tmp_path):
    store, now = open_store(tmp_path.as_uri()), [100.0]
    for restarts in range(3):
        uploader = Uploader(deadline=60)
        event_writer = EventWriter(store, uploader, restarts=restarts, clock=lambda: now[0])
        event_writer.note(EventType.START)
        now[0] += 50
        event_writer.note(EventType.TRAIN, seconds=50, step=40)
        if restarts == 1:
            event_writer.note(EventType.END)
        assert uploader.wait(30)
    entries = read(store.get(CHIEF_LOG).decode().splitlines())
    assert [each.restarts for each in entries] == [0, 0, 1, 1, 1, 2, 2]
    assert (entries[1].event, entries[1].at, entries[1].step) == (EventType.TRAIN, 150, 40)


def test_an_event_log_keeps_its_past_if_the_store_was_unavailable_at_first(tmp_path, monkeypatch):
    store, uploader = open_store(tmp_path.as_uri()), Uploader(deadline=60)
    store.put(CHIEF_LOG, b'{"event": "start", "at": 1.0}\n')
    get, failures = store.get, iter([TemporaryError("the store is away")])

    def get_later(key):
        for failure in failures:
            raise failure
        return get(key)

    monkeypatch.setattr(store, "get", get_later)
    EventWriter(store, uploader, clock=lambda: 2.0).note(EventType.START)
    assert uploader.wait(30)
    entries = read(store.get(CHIEF_LOG).decode().splitlines())
    assert [each.at for each in entries] == [1, 2]


def test_random_numbers_continue_after_a_restart():
    import random

    state = random_state()
    first = random.random(), np.random.normal(), np.random.random()
    restore_random_state(state)
    assert (random.random(), np.random.normal(), np.random.random()) == first


def test_the_metric_state_of_an_epoch_is_restored_unless_its_metrics_have_changed(capsys):
    sums = [np.float32(3.5), np.array([1.0, 2.0]), np.zeros(2)]
    zero = [np.zeros((), np.float32), np.zeros(2), np.zeros(2)]
    again = metric_state_of(metric_state_to_file(sums), zero)
    assert all(np.array_equal(one, other) for one, other in zip(again, sums, strict=True))
    assert metric_state_of(metric_state_to_file(None), zero) is None
    assert metric_state_of(metric_state_to_file(sums), zero[:2]) is None
    assert "those of this epoch begin at zero" in capsys.readouterr().out


def stepped(variable, optimizer):
    """Several steps of an optimizer, in a function as training runs them."""

    def steps():
        for _ in tf.range(3):
            optimizer.apply([tf.ones_like(variable)])

    tf.function(steps)()


def stepped_by_xla(variable, optimizer):
    tf.function(lambda: optimizer.apply([tf.ones_like(variable)]), jit_compile=True)()


def gathered_and_updated(variable, _optimizer):
    tf.gather(variable, [1])
    variable.scatter_update(tf.IndexedSlices(tf.zeros([1, 4]), [2]))


@pytest.mark.parametrize("update", [stepped, stepped_by_xla, gathered_and_updated])
def test_a_snapshot_keeps_its_values_whatever_training_does_meanwhile(update):
    variable = keras.Variable(np.arange(64, dtype=np.float32).reshape(16, 4))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([variable])
    checkpoint = tf.train.Checkpoint(variable=variable, optimizer=optimizer)
    snapshot = Snapshot.of(checkpoint)
    saved, before = [np.array(each) for each in snapshot.values], variable.numpy()
    update(variable.value, optimizer)
    assert not np.array_equal(variable, before)
    for value, old in zip(snapshot.values, saved, strict=True):
        np.testing.assert_array_equal(value, old)


def test_a_snapshot_of_replicas_keeps_its_values_too():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variable = keras.Variable(np.zeros(4, np.float32))
    snapshot = Snapshot.of(tf.train.Checkpoint(variable=variable))
    strategy.run(lambda: variable.assign(tf.ones(4)))
    assert variable.numpy().tolist() == [1.0] * 4
    assert snapshot.values[0].numpy().tolist() == [0.0] * 4
