"""The bill of materials of the locks, and their check against a database of vulnerabilities."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from devtools import audit

ROOT = Path(__file__).parent.parent
LOCKS = [
    ROOT / each
    for each in (
        *("requirements.lock", "images/training/gpu/requirements.lock"),
        "images/uv-requirements.lock",
    )
]

LOCK = f"""
# by a command
keras-tuner==1.4.7 ; python_full_version < '3.12' \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via aerotrain
Pillow==9.0 \\
    --hash=sha256:{"c" * 64}
"""


def ranges(*events: dict[str, str], kind: str = "ECOSYSTEM") -> dict[str, Any]:
    return {"ranges": [{"type": kind, "events": list(events)}]}


def record(
    name: str = "keras-tuner", identifier: str = "PYSEC-1", **affected: Any
) -> dict[str, Any]:
    return {
        "id": identifier,
        "modified": "2026-01-02T00:00:00Z",
        "summary": "runs code",
        "affected": [{"package": {"ecosystem": "PyPI", "name": name}, **affected}],
    }


def test_every_locked_package_is_in_the_bill_of_materials_with_the_hashes_of_its_files() -> None:
    packages = [each for lock in LOCKS for each in audit.packages_of(lock.read_text())]
    bill = audit.bill_of_materials(packages, "0.1.0")
    urls = {each["purl"] for each in bill["components"]}
    assert {f"pkg:pypi/{each.name}@{each.version}" for each in packages} == urls
    assert len(packages) > 200
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(set(references)) == len(references)
    assert all(each["hashes"] for each in bill["components"])


def test_a_component_has_the_marker_and_the_hashes_of_the_lock() -> None:
    tuner, _ = audit.bill_of_materials(audit.packages_of(LOCK), "1")["components"]
    assert tuner["purl"] == "pkg:pypi/keras-tuner@1.4.7"
    assert [each["content"][0] for each in tuner["hashes"]] == ["a", "b"]
    assert tuner["properties"][0]["value"] == "python_full_version < '3.12'"


def test_a_package_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="bare==1 have no hash"):
        audit.packages_of("bare==1\n")


@pytest.mark.parametrize(
    ("known", "count"),
    [
        (record(versions=["1.4.6", "1.4.7"]), 1),
        (record(**ranges({"introduced": "0"}, {"fixed": "1.5"})), 1),
        (record(**ranges({"introduced": "0"}, {"fixed": "1.4.7"})), 0),
        (record(**ranges({"introduced": "1.4.7"}, {"last_affected": "1.4.7"})), 1),
        (record(**ranges({"introduced": "0"}, {"last_affected": "1.4.6"})), 0),
        (record(**ranges({"fixed": "1.3"}, {"introduced": "0"}, {"introduced": "1.4"})), 1),
        (record(**ranges({"introduced": "0"}, kind="GIT")), 0),
        (record(**ranges({"introduced": "2004d"}, {"introduced": "0"})), 1),
        (record("Keras_Tuner", **ranges({"introduced": "0"})), 1),
        (record("keras", **ranges({"introduced": "0"})), 0),
        ({**record(versions=["1.4.7"]), "withdrawn": "2026-01-01T00:00:00Z"}, 0),
    ],
)
def test_a_package_is_affected_as_the_schema_of_osv_defines_it(
    known: dict[str, Any], count: int
) -> None:
    assert len(audit.findings(audit.packages_of(LOCK), iter([known]))) == count


@pytest.mark.parametrize("ignored", [False, True])
def test_a_vulnerability_fails_the_audit_unless_it_is_accepted(
    tmp_path: Path, ignored: bool, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock").write_text(LOCK)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        known = record("pillow", **ranges({"introduced": "0"}, {"fixed": "9.1"}))
        archive.writestr("PYSEC-1.json", json.dumps(known))
    words = ["check", str(tmp_path / "all.zip"), str(tmp_path / "lock")]
    monkeypatch.setattr(sys, "argv", ["audit", *words, *(["--ignore", "PYSEC-1"] * ignored)])
    with pytest.raises(SystemExit) as ended:
        audit.main()
    said = capsys.readouterr().out
    assert ended.value.code == (not ignored)
    assert ("pillow 9.0: PYSEC-1, fixed in 9.1: runs code" in said) is not ignored
    assert "in 2 packages, by 1 records up to 2026-01-02" in said
