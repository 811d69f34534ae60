"""The outcome of a training: how good its model is, what the gate says, and whether it is served.

It comes from what later tasks of the run have written: the metrics of an evaluation, and the result
of an export. All are JSON values for ``static/outcome.js``.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import METRICS, VERSIONS
from aerotrain.serving.alias import served_number
from aerotrain.store import MANIFEST, Store
from aerotrain.store.manifest import Manifest

Document = Mapping[str, Any]


def outcomes_of(
    store: Store, evaluations: Sequence[Document], results: Iterable[Any]
) -> Callable[[str], dict[str, Any]]:
    """What has become of a trained model, by its URL, in the store of its pipeline.

    ``evaluations`` are what ``evaluate`` has written, with the address of the card, and ``results``
    what the tasks of the run have returned. Of several of a model, the first one counts.
    """
    evaluated = {_model_of(each): each for each in reversed(evaluations)}
    versions = {_made_of(store, each): each for each in reversed(_versions(store, results))}
    served = served_number(store.child(VERSIONS)) if versions else None

    def outcome(model: str) -> dict[str, Any]:
        shown = _shown(store, evaluated[model]) if model in evaluated else None
        version = versions.get(model)
        is_served = version is not None and version == served
        return {"evaluation": shown, "version": version, "served": is_served}

    return outcome


def _model_of(document: Document) -> Any:
    return document.get("candidate", {}).get("model")


def _shown(store: Store, document: Document) -> dict[str, Any]:
    """The main metric of an evaluation, with that of the version that was served, and the verdict.

    The main metric is that of the first rule of the gate, or else the first one but the loss.
    """
    metrics: Mapping[str, Any] = document["metrics"]
    judged = [each["metric"] for each in document.get("verdicts", ()) if each["metric"] in metrics]
    metric = next(iter([*judged, *(each for each in metrics if each != "loss"), "loss"]))
    bounds = document.get("intervals", {}).get(metric, ())
    return {
        "metric": metric,
        "value": _number(metrics.get(metric)),
        "interval": bounds if len(bounds) == 2 and None not in map(_number, bounds) else None,
        "compared": _compared(store, document, metric),
        "passed": document.get("passed", True),
        "reason": "".join(document.get("failures", [])[:1]),
        "card": document["card"],
    }


def _compared(store: Store, document: Document, metric: str) -> dict[str, Any] | None:
    """The metric of the version that was served when the model was evaluated.

    It is of the same records if the gate has compared the two, else of the version's own run.
    """
    baseline = document.get("baseline") or {}
    url = baseline.get("url") or document.get("served") or ""
    version = next(iter(_versions(store, [url])), None)
    if version is None or _made_of(store, version) == _model_of(document):
        return None
    found = baseline or _evaluation_of(store, version)
    value = _number(found.get("metrics", {}).get(metric))
    data = found.get("candidate", {}).get("evaluated on")
    same = bool(baseline) or data == document["candidate"].get("evaluated on")
    return None if value is None else {"version": version, "value": value, "same_data": same}


def _evaluation_of(store: Store, version: int) -> Document:
    """What ``evaluate`` has written of the model of which the version was made."""
    model = _made_of(store, version) or ""
    run = "/".join(model.removeprefix(f"{store.url}/").split("/")[:2])
    with suppress(FinalError, ValueError):
        for each in store.list(run) if model.startswith(f"{store.url}/") else ():
            if each.key.endswith(f"/{METRICS}"):
                document: Document = json.loads(store.get(each.key))
                if _model_of(document) == model:
                    return document
    return {}


def _versions(store: Store, urls: Iterable[Any]) -> list[int]:
    """The numbers of those that are URLs of versions of the pipeline."""
    folder = f"{store.url}/{VERSIONS}/"
    numbers = (each.removeprefix(folder) for each in urls if isinstance(each, str))
    return [int(each) for each in numbers if each.isdecimal()]


def _made_of(store: Store, version: int) -> str | None:
    """The URL of the trained model of a version; None if it was deleted, or is damaged."""
    with suppress(FinalError):
        manifest = Manifest.from_json(store.get(f"{VERSIONS}/{version}/{MANIFEST}"))
        return str(manifest.about.get("model"))
    return None


def _number(value: Any) -> float | None:
    """A number; None for what is not finite, which is text in these documents."""
    return value if isinstance(value, int | float) else None
