"""Two runs of one deterministic job reach the same weights, to the last bit."""

import pytest
from tensorflow.python.framework.config import disable_op_determinism, is_op_determinism_enabled

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Job
from aerotrain.data.dataset import load_dataset
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.model.checks import check_deterministic
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run

pytestmark = pytest.mark.process


@pytest.fixture
def _alone():
    """Undo the process-wide setting of a deterministic training: there is no public function."""
    yield
    disable_op_determinism()


@pytest.mark.usefixtures("_alone")
def test_deterministic_runs_have_the_same_noise_and_weights_validated_or_not(digits, tmp_path):
    arguments = {"model": "noisy", "data": digits.data, "epochs": 2, "deterministic": True}
    urls = [
        run(digits.replica("train", f"validated-{each}", validate=each, **arguments))
        for each in (None, False)
    ]
    validated = ["val_loss" in ModelManifest.load(url).metrics for url in urls]
    assert validated == [True, False]
    weights = [weights_of(digits, url, tmp_path) for url in urls]
    assert len(weights[0]) > 4
    for one, other in zip(*weights, strict=True):
        assert one.tobytes() == other.tobytes()


def weights_of(digits, url, scratch):
    trained, user = ModelManifest.load(url), UserCode.load("noisy")
    spec = batch_spec(load_dataset(digits.data).schema, user.transform)
    return trained.restore(user, spec, scratch).get_weights()


@pytest.mark.parametrize(
    ("strategy", "roles", "words"),
    [
        ("parameter_server", ("chief", "worker", "ps"), "under 'parameter_server'"),
        ("one_device", ("chief", "input"), "where other replicas bring the input"),
    ],
)
def test_deterministic_training_with_unordered_steps_is_refused(strategy, roles, words):
    names = {"name": "train", "module": "m", "store": "s3://b", "run": "r", "task": "t"}
    described = {**names, "strategy": strategy, "replicas": [{"role": role} for role in roles]}
    with pytest.raises(FinalError, match=f"deterministic cannot be {words}.*leave it out"):
        check_deterministic(Job.from_dict(described))
    assert not is_op_determinism_enabled()
