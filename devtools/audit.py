"""``python -m devtools.audit``: what is in the locks, and which known vulnerabilities it has.

``sbom LOCK ...`` prints a CycloneDX bill of materials. ``check DATABASE LOCK ...`` compares the
locks with a database of the OSV project for PyPI (``all.zip``), which is a local file: nothing is
asked of a server, and nothing tells one what is installed here.
"""

import argparse
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

#: A package of a lock: ``name==version ; marker \``, and then its hashes.
_PACKAGE = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+?))? *\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, order=True)
class Package:
    """A package of a lock: the marker of its environments, and the SHA-256 of its files."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Finding:
    """A vulnerability of a package, and the versions in which it is fixed."""

    package: str
    version: str
    identifier: str
    fixed: tuple[str, ...]
    summary: str

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed)}" if self.fixed else "not fixed yet"
        return f"{self.package} {self.version}: {self.identifier}, {fixed}: {self.summary}"


def packages_of(lock: str) -> list[Package]:
    """The packages of a lock's text.

    Raises:
        ValueError: one has no hash.
    """
    found: list[Package] = []
    for line in lock.splitlines():
        if named := _PACKAGE.match(line):
            name, version, marker = named.groups(default="")
            found.append(Package(canonicalize_name(name), version, marker, ()))
        elif found and (digest := _HASH.search(line)):
            last = found.pop()
            hashes = (*last.hashes, digest[1])
            found.append(Package(last.name, last.version, last.marker, hashes))
    bare = [f"{each.name}=={each.version}" for each in found if not each.hashes]
    if bare:
        raise ValueError(f"{', '.join(bare)} have no hash in the lock; run `make lock`")
    return found


def bill_of_materials(packages: Sequence[Package], version: str) -> dict[str, Any]:
    """The packages as CycloneDX 1.6, https://cyclonedx.org/docs/1.6/json/."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "aerotrain", "version": version}},
        "components": [_component(each) for each in sorted(set(packages))],
    }


def _component(package: Package) -> dict[str, Any]:
    url = f"pkg:pypi/{package.name}@{package.version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{url}?{package.marker}" if package.marker else url,
        "name": package.name,
        "version": package.version,
        "purl": url,
        "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
    }
    if package.marker:
        component["properties"] = [{"name": "python:marker", "value": package.marker}]
    return component


def findings(packages: Sequence[Package], records: Iterator[Mapping[str, Any]]) -> set[Finding]:
    """The vulnerabilities that the packages have, by records of https://ossf.github.io/osv-schema."""
    versions: dict[str, set[str]] = {}
    for each in packages:
        versions.setdefault(each.name, set()).add(each.version)
    return {
        Finding(name, version, record["id"], _fixes(affected), record.get("summary", ""))
        for record in records
        if "withdrawn" not in record
        for affected in record.get("affected", ())
        if affected.get("package", {}).get("ecosystem") == "PyPI"
        for name in [canonicalize_name(affected["package"]["name"])]
        for version in versions.get(name, ())
        if _is_affected(version, affected)
    }


def _is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Whether a version is listed, or within a range: between an ``introduced`` and its end."""
    if version in affected.get("versions", ()):
        return True
    ours = Version(version)
    for each in affected.get("ranges", ()):
        inside = False
        for event, at in _events(each):
            if event == "introduced":
                inside = inside or at <= ours
            elif at < ours or (event == "fixed" and at == ours):
                inside = False
        if inside:
            return True
    return False


def _events(found: Mapping[str, Any]) -> list[tuple[str, Version]]:
    """The events of a range of versions in their order; none of a range of commits."""
    if found["type"] != "ECOSYSTEM":
        return []
    events = []
    for event in found["events"]:
        for kind, at in event.items():
            try:
                events.append((kind, Version(at)))
            except InvalidVersion:  # such as those of before PEP 440
                continue
    return sorted(events, key=lambda event: event[1])


def _fixes(affected: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        event["fixed"]
        for each in affected.get("ranges", ())
        if each["type"] == "ECOSYSTEM"
        for event in each["events"]
        if "fixed" in event
    )


def _records(database: Path) -> Iterator[Mapping[str, Any]]:
    with zipfile.ZipFile(database) as archive:
        for name in archive.namelist():
            yield json.loads(archive.read(name))


def main() -> None:
    parser = argparse.ArgumentParser(prog="devtools.audit", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("sbom").add_argument("lock", nargs="+", type=Path)
    check = commands.add_parser("check")
    check.add_argument("database", type=Path)
    check.add_argument("lock", nargs="+", type=Path)
    check.add_argument("--ignore", nargs="*", default=(), help="identifiers that are accepted")
    given = parser.parse_args()
    packages = [each for lock in given.lock for each in packages_of(lock.read_text())]
    if given.command == "sbom":
        project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
        print(json.dumps(bill_of_materials(packages, project["version"]), indent=1))
        return
    records = list(_records(given.database))
    newest = max((each["modified"] for each in records), default="no time")
    found = sorted(findings(packages, iter(records)))
    left = [each for each in found if each.identifier not in given.ignore]
    print(*left, sep="\n", end="\n" if left else "")
    print(
        f"{len(left)} known vulnerabilities in {len(set(packages))} packages, "
        f"by {len(records)} records up to {newest}"
    )
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
