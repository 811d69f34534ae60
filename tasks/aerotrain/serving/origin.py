"""``aerotrain origin``: what an exported version was made of, by its manifests."""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.layout import PLAN
from aerotrain.store import MANIFEST, MissingError, open_store


def origin_of(url: str) -> dict[str, Any]:
    """What the version at ``url`` was made of: ``version``, ``export``, ``training`` and ``data``.

    Raises:
        FinalError: there is no complete version, or its model is gone.
    """
    export = _document(url, MANIFEST, f"there is no complete version at {url}; give its URL")
    about = export["about"]
    folder, _, key = about["model"].rpartition("/")
    gone = f"{url} was made of the model {about['model']}, which is gone"
    training = {"model": about["model"], **_document(folder, key, gone)}
    data = {"url": training.pop("data")}
    store = open_store(data["url"])
    if store.exists(PLAN):  # else it was removed
        plan = json.loads(store.get(PLAN))
        data |= {**plan["rules"], "partitions": len(plan["partitions"])}
    return {"version": url, "export": about, "training": training, "data": data}


def _document(url: str, key: str, missing: str) -> Any:
    try:
        return json.loads(open_store(url).get(key))
    except MissingError as error:
        raise FinalError(missing) from error


def lines(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A document for people: a line for each value, indented by its place."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from lines(value, f"{indent}  ")
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            yield f"{indent}{name}: {shown}"


def run(given: Namespace) -> None:
    """Print the origin of the version that the command line names, by its URL or its number.

    Raises:
        SpecError: it names none.
    """
    url = given.version.rstrip("/")
    if "://" not in url:
        if not url.isdigit() or given.store is None:
            raise SpecError(
                f"{url!r} is no URL of a version: give one, such as s3://bucket/flats/serving/3, "
                "or a number and --store s3://bucket/flats/serving"
            )
        url = f"{given.store.rstrip('/')}/{url}"
    found = origin_of(url)
    print(json.dumps(found, indent=1) if given.json else "\n".join(lines(found)))
