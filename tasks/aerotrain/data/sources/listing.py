"""The files that a URL names: one file, those of a folder, or those that match a glob."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from aerotrain.contract.errors import SpecError
from aerotrain.contract.preparing import HIDDEN
from aerotrain.data.sources.input_file import InputFile, store_at
from aerotrain.data.sources.protocol import SourceError
from aerotrain.store import MissingError, StoredObject, StoreRefused
from aerotrain.store.local import LocalStore


def files_of(url: str | Sequence[str], hidden: list[str] | None = None) -> list[InputFile]:
    """The sorted files of one or several URLs, each of a file, a folder or a glob.

    In a folder, names that begin with ``_`` or ``.`` are skipped, and added to ``hidden``. ``*``
    matches within a path segment, ``**`` any number of segments. Links are followed; a file that
    is found twice is read once.

    Raises:
        SourceError: there is no file, or a link is broken.
    """
    skipped: list[str] = []
    if isinstance(url, str):
        files = _files_of(url, skipped)
    else:
        found = {file.url: file for each in url for file in _files_of(each, skipped)}
        files = [found[name] for name in sorted(found)]
    if hidden is not None:
        hidden += skipped
    return files


def _files_of(url: str, skipped: list[str]) -> list[InputFile]:
    base, pattern = split_at_wildcard(url)
    if not pattern:
        folder, _, name = base.rpartition("/")
        # A key in S3 is written as it is, and the path in a file URL may be percent-encoded.
        for key in dict.fromkeys((name, unquote(name) if url.startswith("file:") else name)):
            with suppress(MissingError, SpecError):  # it is a folder, or does not exist
                if key:
                    return [_input(folder, key)]
        pattern = "**"
    matches = re.compile(expression(pattern)).fullmatch
    hidden = HIDDEN if pattern == "**" else DOT_FILE
    base = base.rstrip("/")
    files = []
    for each in _listed(base, lambda key: bool(matches(key)) and not hidden.search(key)):
        if hidden.search(each.key):
            skipped.append(each.key)
        elif matches(each.key):
            files.append(InputFile(store=base, key=each.key, size=each.size, etag=each.etag))
    if not files:
        raise SourceError(
            f"the source is empty: there is no file at {url}; check that the input is where "
            "the source looks for it"
        )
    for file in files:
        _check_name(file)
    files.sort(key=lambda file: file.key)  # some servers list a folder before "folder.csv"
    return files


def _check_name(file: InputFile) -> None:
    """Check that the name is valid UTF-8: JSON and error messages could not hold another."""
    try:
        file.key.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{file.store} holds a file whose name is not UTF-8: {os.fsencode(file.key)!r}; "
            "rename it"
        ) from error


def _input(folder: str, name: str) -> InputFile:
    found = store_at(folder).stat(name)
    return InputFile(store=folder, key=name, size=found.size, etag=found.etag)


def _listed(url: str, is_wanted: Callable[[str], bool]) -> Iterator[StoredObject]:
    store = store_at(url)
    try:
        if isinstance(store, LocalStore):
            yield from _listed_with_links(store, is_wanted)
        else:
            yield from store.list()
    except StoreRefused as error:
        raise StoreRefused(
            f"{error}; if the bucket may be read but not listed, name its files one by one: "
            "'url' may be a list"
        ) from error


def _listed_with_links(
    store: LocalStore, is_wanted: Callable[[str], bool]
) -> Iterator[StoredObject]:
    """The files of a folder, and those that only links lead to, each once."""
    ahead, followed = deque(store.links()), {os.path.realpath(store.root)}
    listed: set[str] = set()
    if ahead:
        listed.update(each.etag for each in store.list())
    yield from store.list()
    while ahead:
        link = ahead.popleft()
        target = Path(os.path.realpath(store.root / link))
        if not target.exists() and is_wanted(link):
            raise SourceError(
                f"{store.url}/{link} is a link to {target}, which does not exist; correct or "
                "remove it"
            )
        if str(target) in followed or not target.is_dir():
            continue
        followed.add(str(target))
        ahead.extend(store.links(f"{link}/"))
        for each in store.list(f"{link}/"):
            if each.etag not in listed and is_wanted(each.key):
                listed.add(each.etag)
                yield each


_WILDCARD = re.compile(r"[*?\[]")

#: Names that are hidden also where a pattern matches them.
# Not "..", which no key may hold: reading it raises an error.
DOT_FILE = re.compile(r"(^|/)\.(?!\.)")


def split_at_wildcard(url: str) -> tuple[str, str]:
    """The URL up to its first segment with a wildcard, and the rest of it, if any."""
    scheme, separator, rest = url.partition("://")
    segments = rest.split("/")
    wild = [number for number, segment in enumerate(segments) if _WILDCARD.search(segment)]
    if not separator or not wild:
        return url, ""
    head, tail = segments[: wild[0]], segments[wild[0] :]
    return f"{scheme}://{'/'.join(head)}", "/".join(tail)


def expression(pattern: str) -> str:
    """A glob as a regular expression; a single star stays within its path segment."""
    translated = ""
    for token in re.findall(r"(?s)\*\*/?|\*|\?|\[[^]]+\]|.", pattern):
        match token:
            case "**/":
                translated += "(?s:.*/)?"
            case "**":
                translated += "(?s:.*)"
            case "*":
                translated += "[^/]*"
            case "?":
                translated += "[^/]"
            case _ if token.startswith("[") and len(token) > 1:
                translated += token.replace("[!", "[^")
            case _:
                translated += re.escape(token)
    return translated
