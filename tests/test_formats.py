"""What another version of aerotrain has written: refused with a sentence, never misread."""

import json
from pathlib import Path

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PLAN
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Dataset
from aerotrain.data.prepare.plan import DatasetPlan
from aerotrain.store import open_store
from aerotrain.store.manifest import Manifest, StoredFile

DATASET = Dataset(fingerprint="f", source={"kind": "csv"}, schema={}, splits={})
PUBLICATION = Manifest(files={"data": StoredFile(4, "digest")})
PLANNED = DatasetPlan(
    source={"kind": "csv"},
    schema=None,
    rules=PlanArguments.from_dict({"source": {"kind": "csv", "url": "file:///data"}}),
    partitions=(),
    shards_per_partition=1,
)


def of_version(text: str, version: int) -> str:
    return json.dumps({**json.loads(text), "version": version})


@pytest.mark.parametrize("other", [-1, 1])
@pytest.mark.parametrize(
    ("written", "words"),
    [
        (DATASET, r"the data set is in version .*; prepare it again"),
        (PUBLICATION, r"the manifest has version .*; use the aerotrain that"),
    ],
)
def test_a_document_of_another_version_is_refused(
    written: Dataset | Manifest, words: str, other: int
) -> None:
    assert type(written).from_json(written.to_json()) == written
    with pytest.raises(FinalError, match=words):
        type(written).from_json(of_version(written.to_json(), written.version + other))


@pytest.mark.parametrize("other", [-1, 1])
def test_a_plan_of_another_version_is_refused(tmp_path: Path, other: int) -> None:
    store = open_store(tmp_path.as_uri())
    store.put(PLAN, PLANNED.to_json().encode())
    assert DatasetPlan.read(store).fingerprint == PLANNED.fingerprint
    store.put(PLAN, of_version(PLANNED.to_json(), PLANNED.VERSION + other).encode())
    with pytest.raises(FinalError, match=r"was planned for version .*; plan it again"):
        DatasetPlan.read(store)
