"""Parameter servers with synchronous updates: the steps are those of one device."""

import re
import signal
from dataclasses import replace
from typing import Any

import pytest

from aerotrain.contract.errors import ExitCode
from aerotrain.standalone import prepare
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run as train
from support.training_fixtures import Pipeline, read_until

pytestmark = pytest.mark.process


def metrics_of(pipeline: Pipeline, run: str) -> dict[str, float]:
    url = f"{pipeline.store}/runs/{run}/train/model.json"
    return dict(ModelManifest.load(url).metrics)


#: Of each model the arguments, and how far metrics may differ by rounding.
MODELS: dict[str, tuple[dict[str, Any], float]] = {
    "clipping, decay, a schedule": ({"model": "plain"}, 2e-4),
    "SGD": ({"model": "plain", "hparams": {"optimizer": "SGD"}}, 2e-4),
    "more parts than workers": ({"model": "plain", "gradient_accumulation_steps": 2}, 2e-4),
    "masked means": ({"model": "masked"}, 2e-4),
    "a table on two ps": ({"model": "text", "ps": 2}, 1e-3),
}


@pytest.fixture(scope="module")
def texts(models: None, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    empty = Pipeline(tmp_path_factory.mktemp("text"), data="")
    return replace(empty, data=prepare(empty.store, empty.folder / "prepare", "text"))


@pytest.mark.parametrize("name", MODELS)
def test_two_workers_train_as_one_device(digits: Pipeline, texts: Pipeline, name: str) -> None:
    arguments, tolerance = MODELS[name]
    pipeline = texts if arguments["model"] == "text" else digits
    run = re.sub(r"\W+", "-", name).lower()
    common = {"epochs": 3, "batch_size": 64, **arguments}
    alone = {key: common[key] for key in ("epochs", "batch_size", "model")}
    alone |= {"hparams": common.get("hparams", {}), "data": pipeline.data}
    train(pipeline.replica("train", f"one-{run}", **alone))
    with pipeline.cluster(f"two-{run}", update="synchronous", **common) as processes:
        said = processes["chief"].communicate(timeout=200)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    one, two = (metrics_of(pipeline, f"{count}-{run}") for count in ("one", "two"))
    assert two == pytest.approx(one, rel=tolerance)


def test_a_killed_worker_and_a_backup_change_no_result(digits: Pipeline, models: None) -> None:
    common = {"model": "small", "epochs": 12, "batch_size": 64, "update": "synchronous"}
    with digits.cluster("whole-sync", **common) as processes:
        said = processes["chief"].communicate(timeout=200)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    more = {"replicas_to_aggregate": 2}
    with digits.cluster("killed-sync", **common, **more) as processes:
        read_until(processes["chief"], "epoch 2 of")
        processes["worker-1"].send_signal(signal.SIGKILL)
        said = processes["chief"].communicate(timeout=200)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    assert re.search("worker-1 was lost", said)
    whole, killed = (metrics_of(digits, f"{name}-sync") for name in ("whole", "killed"))
    assert killed == pytest.approx(whole, rel=1e-5)
