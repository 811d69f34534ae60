"""DTensor: a mesh trains as one device does, in one process or several, and holds larger models."""

import json
import re

import numpy as np
import pytest

from aerotrain.contract.environment import cluster_of
from aerotrain.contract.errors import ExitCode, FinalError, SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.training import TrainArguments
from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.store import open_store
from aerotrain.training.checkpoints.retention import complete_checkpoints
from aerotrain.training.model.checks import check_validation
from aerotrain.training.model_manifest import ModelManifest
from support.described_jobs import job
from support.training_fixtures import read_until, start_python, steps_of_replicas

pytestmark = pytest.mark.process

STEPS = 45  # an epoch of 1,249 records has 40 batches of 32; the last one has 1 record

WIDE = {"wide/kernel": [None, "model"], "wide/bias": ["model"], "top/kernel": ["model", None]}


def test_a_mesh_computes_the_same_as_one_device(digits):
    """The optimizer of the model averages the weights, and assigns the averages at the end."""

    def job(strategy, **arguments):
        common = {"model": "laden", "data": digits.data, "steps_per_execution": 1}
        return digits.job("train", "mesh", {**common, **arguments}, strategy=strategy), STEPS

    layout = {"dense/kernel": ["batch", "model"], "dense_1/kernel": ["model", None]}
    jobs = [job("dtensor", mesh={"batch": 2, "model": 2}, layout=layout), job("one_device")]
    [cut], [alone] = steps_of_replicas(jobs, digits.folder / "mesh", devices=1)
    assert alone.keys() == cut.keys()
    assert cut["counter"] == cut["iterations"] == STEPS
    for name in alone:
        np.testing.assert_allclose(cut[name], alone[name], rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("workers", "members"), [(0, []), (2, ["chief", "worker"])])
def test_a_mesh_may_do_without_workers_and_then_has_no_cluster(digits, workers, members):
    roles = [{"role": "chief"}, {"role": "worker", "count": workers}]
    job = Job.from_dict(
        {"name": "mesh", "module": "aerotrain.training.train", "store": digits.store, "run": "r"}
        | {"task": "train", "strategy": "dtensor", "replicas": roles}
    )
    cluster = cluster_of(job, {name: f"{name}:1" for name in job.names()})
    assert sorted(cluster) == members


def test_two_processes_go_on_from_a_model_through_a_preemption(digits, trained):
    """What they train is evaluated and exported as any other model."""
    arguments = {"strategy": "dtensor", "model": "small", "start_from": trained}
    arguments |= {"layout": {"dense/kernel": [None, "model"], "dense/bias": ["model"]}}
    arguments |= {"checkpoint_interval": 20, "steps_per_execution": 2}
    with digits.cluster("halves", epochs=2000, **arguments) as processes:
        said = read_until(processes["chief"], "epoch 1 of 2000: ")
        assert "  taken: " in said
        assert "  new: " not in said
        assert float(said.rpartition("accuracy=")[2].split()[0]) > 0.9
        # Until both kinds of executions are compiled: a preempted replica does not wait for that.
        read_until(processes["chief"], "epoch 2 of 2000: ")
        processes["worker-0"].terminate()
        said = {each: process.communicate(timeout=240)[0] for each, process in processes.items()}
        codes = {each: process.returncode for each, process in processes.items()}
    assert set(codes.values()) == {ExitCode.TERMINATED}, said
    saved = complete_checkpoints(open_store(f"{digits.store}/runs/halves/train"))[-1]
    for words in said.values():
        assert f"preempted after step {saved.step}, which is saved" in words

    epochs = saved.step // 40 + 2
    with digits.cluster("halves", epochs=epochs, **arguments) as processes:
        for process in processes.values():
            said = process.communicate(timeout=120)[0]
            assert process.returncode == ExitCode.OK, said
            assert f"resuming from the checkpoint of step {saved.step}" in said
    folder = digits.folder / "store/runs/halves/train"
    url = json.loads((folder / "result.json").read_text())["value"]
    assert ModelManifest.load(url).step == epochs * 40
    assert not [path for path in (folder / "parts").rglob("*") if path.is_file()]
    given = {"model": url, "data": digits.data}
    evaluate.run(digits.replica("evaluate", "halves", thresholds={"accuracy": 0.9}, **given))
    export.run(digits.replica("export", "halves", **given))


def test_a_layer_cut_in_two_takes_half_of_its_memory_and_a_lost_process_ends_the_other(digits):
    def peak_of(name, **arguments):
        common = {"strategy": "dtensor", "model": "wide", "epochs": 2000, "batch_size": 256}
        with digits.cluster(name, steps_per_execution=1, **common, **arguments) as processes:
            said = read_until(processes["chief"], "peak ")
            processes["worker-0"].kill()
            read_until(processes["chief"], "error: another process of this job was lost")
            assert processes["chief"].wait(30) == ExitCode.TEMPORARY
        return int(re.search(r"peak (\d+) MiB", said)[1])

    whole = peak_of("wide-whole", mesh={"batch": 2})
    cut = peak_of("wide-cut", layout=WIDE)
    assert cut < whole - 192, f"{cut} MiB with half of the layer, {whole} with all of it"


#: Invalid jobs on a mesh of four devices, and the error of each.
REFUSED = [
    (
        {"layout": {"dens/kernel": [None, "model"]}},
        "the layout 'dens/kernel' of 'dtensor' names no variable, did you mean",
    ),
    (
        {"layout": {"dense_1/kernel": [None, "model"]}, "mesh": {"model": 4}},
        "of shape (32, 10): 10 cannot be cut into 4 along 'model'",
    ),
    (
        {"layout": {"dense/kernel": ["model"]}},
        "of shape (64, 32): it has 1 entries; give an axis or null for each dimension",
    ),
    (
        {"batch_size": 33, "mesh": {"batch": 4}},
        "33 cannot be shared by the 4 replicas of 'dtensor'; use 32 or 36",
    ),
    ({"mesh": {"batch": 3}}, "takes 3 CPU devices of this process"),
    (
        {"gradient_accumulation_steps": 2, "batch_size": 64},
        "gradient_accumulation_steps=2 cannot be under 'dtensor'",
    ),
    ({"model": "accumulating"}, "gradient_accumulation_steps acts in some steps only"),
    ({"model": "own_step"}, "OwnStep has a train_step of its own"),
    ({"model": "depthwise"}, ", an operation that 'dtensor' cannot compute; replace the layer"),
    (
        {"model": "meddling", "hparams": {"callbacks": ["Calling"]}},
        "uses a tensor outside of the mesh of 'dtensor'",
    ),
]


@pytest.fixture(scope="module")
def refusals(digits):
    """The error of each job of ``REFUSED``, all in one process of four devices."""
    jobs = [
        digits.job(
            "train", "no", {"model": "plain", "data": digits.data, **arguments}, strategy="dtensor"
        ).to_json()
        for arguments, _ in REFUSED
    ]
    code = (
        "import pathlib, sys, keras, tensorflow as tf\n"
        "from aerotrain.contract.job import Job\n"
        "from aerotrain.contract.replicas import ReplicaName, Role\n"
        "from aerotrain.replica import Replica, run_replica\n"
        "[cpu] = tf.config.list_physical_devices('CPU')\n"
        "four = [tf.config.LogicalDeviceConfiguration()] * 4\n"
        "tf.config.set_logical_device_configuration(cpu, four)\n"
        "for job in sys.argv[1:]:\n"
        "    keras.backend.clear_session()\n"
        "    chief = ReplicaName(Role.CHIEF, 0)\n"
        "    scratch = pathlib.Path.cwd()\n"
        "    job = Job.from_json(job)\n"
        "    replica = Replica(job=job, name=chief, attempt='1', scratch=scratch)\n"
        "    print('ended', run_replica(replica))\n"
    )
    folder = digits.folder / "refused"
    folder.mkdir()
    with start_python(["-c", code, *jobs], folder) as process:
        said = process.communicate(timeout=120)[0]
    assert said.count(f"ended {ExitCode.FINAL}") == len(REFUSED), said
    return said


def test_validation_is_refused_on_a_mesh_of_several_processes():
    with pytest.raises(FinalError, match="ask for an evaluator"):
        check_validation(job("dtensor", [{"role": "chief"}, {"role": "worker"}]))


@pytest.mark.parametrize("message", [message for _, message in REFUSED])
def test_a_job_that_a_mesh_cannot_train_is_refused(refusals, message):
    assert message in refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": {"modle": 2}}, "mesh has no key 'modle', did you mean 'model'"),
        ({"mesh": {"model": 0}}, r"mesh\['model'\] must be a whole number of 1 or"),
        ({"layout": {"kernel": "model"}}, r"must be a list, got 'model'; write \['model'\]"),
        ({"layout": {"kernel(": ["model"]}}, "is no regular expression"),
    ],
    ids=str,
)
def test_an_invalid_mesh_or_layout_is_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        TrainArguments.from_dict({"model": "m", "data": "d", **arguments})
