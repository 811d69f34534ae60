"""Globs in URLs: where the pattern begins, and the keys that it matches.

``*`` and ``?`` match within a path segment, ``**`` any number of segments.
"""

import re

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
