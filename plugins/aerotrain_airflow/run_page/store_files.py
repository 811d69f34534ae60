"""Objects of the store for a browser: files, and lists of folders.

A browser needs no key of the store, nor access to it. Files were written by pipelines, so their
scripts must not act as the user who looks at them: they get an origin of their own, and load
nothing.
"""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from mimetypes import guess_type
from urllib.parse import quote

from aerotrain.contract.errors import FinalError
from aerotrain.store import Store
from aerotrain.store.protocol import StoredObject

#: The largest file that is shown, in bytes.
LARGEST = 64 << 20

#: The most entries of a list.
_MOST_ENTRIES = 1000

#: For every file: https://developer.mozilla.org/docs/Web/HTTP/Headers/Content-Security-Policy/sandbox
HEADERS = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

#: Types that a browser shows; anything else is text or a download.
_SHOWN = ("text/html", "application/json", "image/png", "image/jpeg", "image/svg+xml")
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class File:
    """The content of a file and its type."""

    content: bytes
    kind: str


def file_of(store: Store, key: str) -> File:
    """The file ``key``.

    Raises:
        MissingError: there is none.
        FinalError: it is too large for a browser.
        SpecError: the key is not valid.
    """
    size = store.stat(key).size
    if size > LARGEST:
        raise FinalError(
            f"{store.url}/{key} has {size >> 20} MiB, and at most {LARGEST >> 20} MiB are shown; "
            "download it with a client of the store"
        )
    return File(store.get(key), _type(key))


def _type(key: str) -> str:
    guessed, _ = guess_type(key)
    if guessed in _SHOWN:
        return f"{guessed}; charset=utf-8" if guessed.startswith("text/") else guessed
    is_text = key.endswith((".jsonl", ".txt", ".log", ".py", ".csv"))
    return _TEXT if is_text else "application/octet-stream"


def list_page(store: Store, folder: str) -> str:
    """A page with the files and folders in ``folder``, which is empty or ends in a slash."""
    entries = _entries(folder, store.list(folder.rstrip("/")))
    rows = "".join(
        f'<tr><td><a href="{quote(name)}">{html.escape(name)}</a></td><td>{size:,}</td></tr>'
        for name, size in entries
    )
    title = html.escape(f"{store.url}/{folder}")
    table = f"<table><tr><th>name</th><th>bytes</th></tr>{rows}</table>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" '
        f'content="light dark"><title>{title}</title><style>body{{font:14px system-ui;margin:2em;'
        "overflow-wrap:anywhere}td,th{text-align:left;padding:.2em 2em .2em 0}"
        "td+td{text-align:right}</style></head><body>"
        f"<h1>{title}</h1>{table if rows else '<p>This folder is empty.</p>'}</body></html>"
    )


def _entries(folder: str, listed: Iterable[StoredObject]) -> list[tuple[str, int]]:
    """The names directly in a folder with the bytes of each: a folder's is the sum of its files."""
    sizes: dict[str, int] = {}
    for each in listed:
        rest = each.key.removeprefix(folder)
        first, slash, _ = rest.partition("/")
        name = first + slash
        if name not in sizes and len(sizes) == _MOST_ENTRIES:
            break
        sizes[name] = sizes.get(name, 0) + each.size
    return list(sizes.items())
