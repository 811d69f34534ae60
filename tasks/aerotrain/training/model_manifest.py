"""The manifest of a trained model: everything that is needed to rebuild the model."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Self

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import MODEL
from aerotrain.store import open_store
from aerotrain.training.checkpoints.checkpoints import restore_weights
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.user_code import changed_code

VERSION = 3


def packages() -> dict[str, str]:
    """The versions of Python, TensorFlow, Keras and aerotrain, and a hash of all packages."""
    found = {each.name.lower(): each.version for each in distributions()}
    lines = "".join(f"{name}=={found[name]}\n" for name in sorted(found))
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": found["keras" if KERAS.name == "keras" else "tf_keras"],
        "aerotrain": found.get("aerotrain", "not installed"),
        "packages": f"{len(found)}, sha256 {hashlib.sha256(lines.encode()).hexdigest()}",
    }


@dataclass(frozen=True, kw_only=True)
class ModelManifest:
    """The code that builds the model, and the checkpoint that holds its weights.

    ``module`` and ``code`` are the user's module and its folder. ``data`` and ``checkpoint`` are
    URLs. ``metrics`` are those of the last epoch of training. ``dtype_policy`` is the policy of the
    training. ``environment`` says for people in which versions it ran: of Python, its packages, the
    image and the DAG bundle. ``started_from`` has the model of ``start_from``, and which
    variables it gave values. ``recipe`` is what of its job decided the result, as ``Job.recipe``
    has it, and by ``modules`` a hash of each file of the user's code.
    """

    module: str
    code: str | None
    hparams: Mapping[str, Any]
    data: str
    strategy: str
    step: int
    checkpoint: str
    metrics: Mapping[str, float]
    dtype_policy: str = "float32"
    environment: Mapping[str, str] = field(default_factory=dict)
    started_from: Mapping[str, Any] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def load(cls, url: str) -> Self:
        """Read the manifest at ``url``, or in the folder ``url``.

        Raises:
            MissingError: there is no manifest.
            FinalError: it was written by a version of aerotrain that is too old, or newer.
        """
        folder, _, key = url.rpartition("/") if url.endswith(".json") else (url, "", MODEL)
        values = json.loads(open_store(folder).get(key))
        if values.get("version") != VERSION:
            raise FinalError(
                f"{url} is written in version {values.get('version')}, this is version "
                f"{VERSION}; use the aerotrain that trained the model, or train it again"
            )
        return cls(**values)

    def code_warnings(self) -> list[str]:
        """A sentence if the user's code, which is imported, is no longer that of the training."""
        changed = changed_code(self.recipe.get("modules", {}), self.module)
        if not changed:
            return []
        return [
            f"{' and '.join(changed)} changed after this model was trained, and its weights are "
            "those of the earlier code: train it again, unless the change does not concern it"
        ]

    def restore(self, code: UserCode, batch: Any, scratch: Path) -> keras.Model:
        """Build the model in this process, with the final weights of the training.

        ``batch`` is the element spec of the model's batches.
        """
        model = code.build(self.hparams, batch, self.dtype_policy)
        restore_weights(model, open_store(self.checkpoint), scratch / "checkpoint")
        return model
