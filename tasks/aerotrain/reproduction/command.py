"""``aerotrain reproduce``: print what a version was made of, and make it again where asked."""

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import SpecError


def url_of(version: str, store: str | None) -> str:
    """The URL of the version that the command line names.

    Raises:
        SpecError: it names none.
    """
    if "://" in version:
        return version
    if not version.isdigit() or store is None:
        raise SpecError(
            f"{version!r} is no URL of a version: give one, such as s3://bucket/flats/serving/3, "
            "or a number and --store s3://bucket/flats/serving"
        )
    return f"{store.rstrip('/')}/{version}"


def run(given: Namespace, environment: Mapping[str, str]) -> None:
    """Print the origin and what has changed; with ``--run``, train again and compare."""
    url = url_of(given.version, given.store)
    # These imports load TensorFlow.
    from aerotrain.reproduction.origin import Origin, changes, lines

    with redirect_stdout(sys.stderr) if given.json else nullcontext():
        origin = Origin.of(url)
        document = origin.to_dict()
        print(*lines(document), sep="\n")
        document["changes"] = changes(origin)
        print("compared with what is there now:")
        print(*(f"- {each}" for each in document["changes"] or ["nothing has changed"]), sep="\n")
        if given.run:
            document["again"] = _again(origin, document["changes"], environment)
            print(f"trained again: {document['again']['result']}")
    if given.json:
        print(json.dumps(document, indent=1))


def _again(origin: Any, changed: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    from aerotrain.reproduction.retraining import compare, job_of, result, train

    job = job_of(origin)
    print(f"run {job.run}: the output goes to {job.prefix}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aerotrain-", ignore_cleanup_errors=True) as folder:
        now = train(job, Path(folder), environment)
        equal, differing = compare(origin.trained, now, Path(folder) / "compared")
    said = result(equal, differing)
    if differing:
        why = "; ".join(changed) or "nothing else has changed: is the model's code deterministic?"
        said += f". This may be because: {why}"
    return {
        "model": f"{job.prefix}/model.json",
        "equal": equal,
        "differing": differing,
        "result": said,
    }
