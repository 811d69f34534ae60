"""Numbers as people write them, with marks between thousands, decimal commas, currencies and %."""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: The forms of numbers that a type may name, each with its marks of thousands and of decimals.
FORMS: Mapping[str, tuple[str, str]] = {
    "1234.56": ("", "."),
    "1234,56": ("", ","),
    "1,234.56": (",", "."),
    "1.234,56": (".", ","),
    "1 234.56": (" ", "."),
    "1 234,56": (" ", ","),
    "1'234.56": ("'", "."),
}

#: What may be before or after a number, and does not change it: 5 % is 5.
_UNIT = r"(?:[\pSc%]|EUR|USD|GBP|CHF)"

#: Blanks of all kinds, and the apostrophe and the minus of typesetters.
_BLANKS = r"[\s\x{00a0}\x{2009}\x{202f}]"
_PLAIN = (("\N{RIGHT SINGLE QUOTATION MARK}", "'"), ("\N{MINUS SIGN}", "-"))


def plain_of(texts: Any, form: str) -> Any:
    """The texts as Python writes numbers, null where one is no number of that form.

    An integer that begins with 0 is none, but a name, such as a postal code.
    """
    for old, new in _PLAIN:
        texts = pc.replace_substring(texts, old, new)
    texts = pc.replace_substring_regex(texts, f"^{_BLANKS}*([+-]?){_UNIT}?{_BLANKS}*", r"\1")
    texts = pc.replace_substring_regex(texts, f"{_BLANKS}*{_UNIT}?{_BLANKS}*$", "")
    thousands, decimal = FORMS[form]
    mark = _BLANKS if thousands == " " else re.escape(thousands)
    grouped = rf"|[1-9]\d{{0,2}}({mark}\d{{3}})+" if thousands else ""
    number = rf"^[+-]?((0|[1-9]\d*{grouped})({re.escape(decimal)}\d*)?|{re.escape(decimal)}\d+)$"
    known = pc.if_else(pc.match_substring_regex(texts, number), texts, None)
    if thousands:
        known = pc.replace_substring_regex(known, mark, "")
    return pc.replace_substring(known, decimal, ".")


def numbers_of(texts: Any, form: str) -> Any:
    """The numbers of texts of that form, as float64.

    Raises:
        pa.ArrowInvalid: a text is none.
    """
    plain = plain_of(texts, form)
    check_known(texts, plain, f"no number as {form}")
    return plain.cast(pa.float64())


def check_known(texts: Any, found: Any, what: str) -> None:
    """Check that what was found of the texts is null only where they are.

    Raises:
        pa.ArrowInvalid: it is not; the message says that the first such text is ``what``.
    """
    if found.null_count > texts.null_count:
        other = pc.filter(texts, pc.and_(pc.is_null(found), pc.is_valid(texts)))[0].as_py()
        raise pa.ArrowInvalid(f"{other!r} is {what}")
