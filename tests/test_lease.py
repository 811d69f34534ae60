"""Two runs that would train in one place of the store."""

import threading

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.store import open_store
from aerotrain.training.attending import lease
from aerotrain.training.attending.lease import leased


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store in which time goes ten times as fast."""
    monkeypatch.setattr(lease, "RENEWED_EVERY", 0.5)
    monkeypatch.setattr(lease, "LAPSES_AFTER", 2.0)
    return open_store((tmp_path / "runs/1/train").as_uri())


def test_a_prefix_in_use_by_another_live_run_is_refused_and_that_run_named(store):
    with (
        leased(store, "first", "here"),
        pytest.raises(FinalError, match=r"runs/1/train is in use.*launch first on here; end"),
        leased(store, "second", "there"),
    ):
        pass


def test_the_same_launch_comes_back_at_once(store):
    with leased(store, "first", "here"), leased(store, "first", "here"):
        assert store.exists(lease.KEY)


def test_what_ended_is_in_nobodys_way(store):
    with leased(store, "first", "here"):
        pass
    with leased(store, "second", "there"):
        assert b"second" in store.get(lease.KEY)


def test_the_claim_of_a_run_that_was_killed_lapses(store, capsys):
    store.put(lease.KEY, b'{"attempt": "first", "place": "here"}')
    with leased(store, "second", "there"):
        assert b"second" in store.get(lease.KEY)
    assert "launch first on here was the last to train here" in capsys.readouterr().out


def test_of_two_at_the_same_moment_one_trains(store):
    came, over, ended = threading.Barrier(2), threading.Event(), []

    def train(attempt):
        came.wait()
        try:
            with leased(store, attempt, "here"):
                over.wait(10)
        except FinalError:
            ended.append(attempt)
            over.set()

    both = [threading.Thread(target=train, args=(name,)) for name in ("one", "other")]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert len(ended) == 1
