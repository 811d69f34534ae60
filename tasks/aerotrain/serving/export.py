"""Export a trained model for TensorFlow Serving, verified by a separate process."""

import hashlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Job
from aerotrain.contract.layout import VERSIONS
from aerotrain.contract.steps import ExportArguments
from aerotrain.data.dataset import TRAIN_SPLIT, Dataset, load_dataset
from aerotrain.replica import Replica
from aerotrain.serving.classes import classes_of, write_classes
from aerotrain.serving.formats import check_installed, convert
from aerotrain.serving.own_process import last_line, seconds_for
from aerotrain.serving.requests import RECORDS, write_requests
from aerotrain.serving.servable import Servable
from aerotrain.serving.signature import by_name, input_names
from aerotrain.serving.verify import write_part
from aerotrain.serving.versions import claim_version, model_name, published_version
from aerotrain.store import MANIFEST, open_store, publish
from aerotrain.training.input.batches import batch_spec, first_records, parse, streamed
from aerotrain.training.input.shards import enough, split_of
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.error_messages import errors_translated
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.user_code import code_of

#: The model without its transform, in Keras's format, next to the SavedModel.
KERAS_FILE = "model.keras"

_VERIFIER = Path(__file__).with_name("verify.py")

#: The file of records by which a model is quantized, and how many these are.
CALIBRATION, CALIBRATED = "calibration", 256

#: Records that are compared at once, so that a split of any size fits into memory, and the bytes of
#: records and predictions from which they are compared and removed, so that it fits onto the disk.
_CHECKED_AT_ONCE, _CHECK_BYTES = 1024, 2**28


def run(replica: Replica) -> str:
    """Export and verify the model, then publish it under a new version.

    If an earlier try published the same export, its version is the result.

    Returns:
        The URL of the version.

    Raises:
        FinalError: the exported model does not reproduce the trained model's predictions.
    """
    job = replica.job
    arguments = ExportArguments.from_dict(job.arguments)
    check_installed(arguments.other_formats)
    store, export = open_store(job.store).child(VERSIONS), description(job, arguments)
    version = published_version(store, export)
    if version is None:
        saved, check = replica.scratch / "saved_model", replica.scratch / "check"
        tolerance = write(replica, arguments, saved, check)
        formats = convert(
            arguments.other_formats,
            saved,
            check,
            tolerance=arguments.format_tolerance,
            calibration=replica.scratch / CALIBRATION if arguments.quantize else None,
        )
        version = published_version(store, export)  # another try may have been faster
    if version is not None:
        print(f"another try has published it, as version {version}", flush=True)
        return f"{store.url}/{version}"
    version = claim_version(store, export)
    about = {"model": arguments.model, "data": arguments.data, "tolerance": tolerance}
    for each in ModelManifest.load(arguments.model).code_warnings():
        print(f"warning: {each}", flush=True)
        about["warning"] = each
    about |= {"formats": formats} if formats else {}
    publish(store, saved, str(version), about)
    print(f"published as version {version}: {store.url}/{version}", flush=True)
    return f"{store.url}/{version}"


def description(job: Job, arguments: ExportArguments) -> dict[str, Any]:
    """The identity of the export: the same in every try, another for a retrained model."""
    trained = ModelManifest.load(arguments.model)
    module = UserCode.load(trained.module, trained.data).name
    weights = open_store(trained.checkpoint).get(MANIFEST)
    return {
        "run": job.run,
        "task": job.task,
        "code": code_of(module),
        "model": arguments.model,
        "data": arguments.data,
        "formats": [*arguments.other_formats],
        "quantize": arguments.quantize,
        "trained": hashlib.sha256(trained.to_json().encode() + weights).hexdigest(),
    }


def save_keras_file(model: Any, file: Path) -> None:
    """Write the model without its optimizer in Keras's own format, for ``keras.saving.load_model``.

    A model that Keras cannot load again gets no file, with a note: its classes must be registered.
    """
    try:
        KERAS.save(model, file)
    except Exception as error:  # noqa: BLE001 -- Keras and the model's own methods raise anything
        file.unlink(missing_ok=True)
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        print(f"the export has no {file.name}, because Keras cannot load it: {reason}", flush=True)


def write(replica: Replica, arguments: ExportArguments, saved: Path, check: Path) -> float:
    """Write the SavedModel to ``saved``, and verify it on records of the split.

    ``check`` keeps the first of these records and their expected outputs, of at most about
    ``_CHECK_BYTES``.

    Returns:
        The accepted difference of predictions.

    Raises:
        FinalError: the exported model does not reproduce the predictions of the trained one.
    """
    trained = ModelManifest.load(arguments.model)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(trained.module, trained.data)
    split = split_of(dataset, arguments.split)
    count = split.records if arguments.records is None else arguments.records
    with (
        errors_translated(code, dataset, arguments.data, arguments.split, replica.scratch),
        streamed(arguments.data, enough(split.shards, count), replica.scratch) as files,
    ):
        spec = batch_spec(dataset.schema, code.transform)
        model = trained.restore(code, spec, replica.scratch)
        batches = iter(files.records().take(count).batch(_CHECKED_AT_ONCE))
        examples = next(batches)
        # LiteRT and ONNX cannot replace texts.
        nulls = () if arguments.other_formats else dataset.source.get("nulls", ())
        servable = Servable(model, code.transform, dataset.schema, examples[0], nulls)
        servable.save(saved)
        for name, given in input_names(servable.needed).items():
            if name != given:
                print(f"the column {name!r} is the input {given!r} of the model", flush=True)
        _write_extras(servable, examples[:RECORDS], dataset, saved, model_name(replica.job.store))
        parts, folder = enumerate(chain([examples], batches)), check
        while _save_checks(servable, parts, folder):
            verify(saved, folder)
            if folder != check:
                rmtree(folder)
            folder = replica.scratch / "further_check"
        if arguments.quantize:
            _save_calibration(servable, dataset, arguments, replica)
        if arguments.keras_file:
            save_keras_file(model, saved / KERAS_FILE)
    return servable.tolerance


def _write_extras(
    servable: Servable, examples: tf.Tensor, dataset: Dataset, saved: Path, name: str
) -> None:
    """Write requests of real records with their predictions, and the classes of those outputs that
    predict the label, next to the SavedModel of the model ``name``."""
    features = parse(examples, dataset.schema)
    outputs = servable.outputs(features)
    write_requests(saved, name, servable.inputs(examples), outputs)
    if dataset.label not in dataset.names:
        return
    _, y, _ = keras.utils.unpack_x_y_sample_weight(servable.transform(dict(features)))
    targets = {} if y is None else by_name(y)
    if len(outputs) == len(targets) == 1:  # whose names may differ
        targets = dict(zip(outputs, targets.values(), strict=True))
    names, labels = dataset.names[dataset.label], np.asarray(features[dataset.label])
    write_classes(saved, classes_of(names, outputs, targets, labels))


def _save_checks(servable: Servable, parts: Iterator[tuple[int, tf.Tensor]], folder: Path) -> int:
    """Write the next records below ``folder``, a file for each part, with expected outputs.

    Returns:
        The bytes that were written: ``_CHECK_BYTES`` or a part more, or what is left.
    """
    size = 0
    for number, examples in parts:
        part = folder / f"{number:06d}"
        servable.save_check(examples, part)
        size += part.stat().st_size
        if size >= _CHECK_BYTES:
            break
    return size


def _save_calibration(
    servable: Servable, dataset: Dataset, arguments: ExportArguments, replica: Replica
) -> None:
    """Write inputs for quantization: records that the model was trained on, if there are any."""
    name = TRAIN_SPLIT if TRAIN_SPLIT in dataset.splits else arguments.split
    shards = enough(split_of(dataset, name).shards, CALIBRATED)
    with streamed(arguments.data, shards, replica.scratch) as files:
        inputs = servable.inputs(first_records(files, CALIBRATED))
        write_part(replica.scratch / CALIBRATION, inputs=inputs)


def verify(saved: Path, check: Path) -> None:
    """Verify the SavedModel in ``saved`` by a new process, in which Keras cannot be imported.

    Raises:
        FinalError: it does not load, or its predictions differ from those in ``check``.
    """
    try:
        print(last_line([str(_VERIFIER), str(saved), str(check)], seconds_for(check)), flush=True)
    except FinalError as error:
        raise FinalError(
            f"the exported model is not the trained one, nothing was published: {error}; check "
            "whether the model or its transform keeps state outside of TensorFlow's variables"
        ) from None
