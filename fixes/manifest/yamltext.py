"""YAML with comments, of plain values: the little of it that manifests need.

Written here and not by a library, since none of the standard library's does, and the usual
ones drop comments. ``tests/test_manifest.py`` reads back what it writes with PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Union

#: A word that needs no quotes: no indicator in front, no ": " and no " #" inside.
_PLAIN = re.compile(
    r"""(?:[\w/.$]|-(?=[\w-]))(?:[\w/.$@%+,=()<>;*"'|~!?&-]|:(?=\S)| (?=[^\s#:]))*""", re.ASCII
)
#: What YAML 1.1, which Kubernetes reads, takes for something else than a string.
_OTHER = re.compile(
    r"y|n|yes|no|on|off|true|false|null|[-.]?(?:inf|nan)|[-+.]?[\d._]+(?:e[-+]?\d+)?|=|<<"
    r"|[-+]?0[xob][\da-f_]+|[-+]?\d[\d_]*(?::\d+)+|\d{4}-\d.*|-{2,}|\.+",
    re.IGNORECASE,
)


class Note(NamedTuple):
    """A value with a comment, which is written above it."""

    text: str
    value: Value


Value = Union["dict[str, Value]", "list[Value]", str, int, float, bool, None, Note]
Document = dict[str, Value]


def emit(documents: Iterable[Document], heading: Sequence[str] = ()) -> str:
    """Documents as one text; ``heading`` is its first comment, line by line."""
    parts = ["\n".join(_mapping(document, "")) + "\n" for document in documents]
    return "".join(f"{line}\n" for line in _comment(heading, "")) + "---\n".join(parts)


def plain(value: Value) -> Value:
    """A value without its comments."""
    if isinstance(value, Note):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def _mapping(value: dict[str, Value], indent: str) -> Iterator[str]:
    for key, each in value.items():
        if isinstance(each, Note):
            yield from _comment(each.text.split("\n"), indent)
            each = each.value
        yield from _entry(f"{indent}{_scalar(key)}:", each, indent)


def _sequence(value: list[Value], indent: str) -> Iterator[str]:
    for each in value:
        if isinstance(each, Note):
            yield from _comment(each.text.split("\n"), indent)
            each = each.value
        if isinstance(each, (dict, list)) and each:
            first, *rest = _lines(each, indent + "  ")
            while first.lstrip().startswith("#"):  # a comment on the first key stands above
                yield indent + first.lstrip()
                first, *rest = rest
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield from _entry(f"{indent}-", each, indent)


def _lines(value: Value, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        return _mapping(value, indent)
    assert isinstance(value, list)
    return _sequence(value, indent)


def _entry(start: str, value: Value, indent: str) -> Iterator[str]:
    """What stands behind a key or a dash."""
    if isinstance(value, (dict, list)):
        if not value:
            yield f"{start} {'{}' if isinstance(value, dict) else '[]'}"
            return
        yield start
        yield from _lines(value, indent + "  ")
    elif isinstance(value, str) and _fits_block(value):
        yield f"{start} |{'' if value.endswith(chr(10)) else '-'}"
        for line in value.removesuffix("\n").split("\n"):
            yield f"{indent}  {line}" if line else ""
    else:
        assert not isinstance(value, Note)
        yield f"{start} {_scalar(value)}"


def _fits_block(value: str) -> bool:
    """Whether it has lines that can be written as they are."""
    lines = value.removesuffix("\n").split("\n")
    return (
        len(lines) > 1
        and bool(lines[-1])
        and not value[0].isspace()
        and all(line.isprintable() for line in lines)
    )


def _scalar(value: str | int | float | bool | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # YAML 1.1 wants a dot, and a sign in the exponent, which repr always gives.
        digits, exponent, power = repr(value).partition("e")
        return f"{digits if '.' in digits else digits + '.0'}{exponent}{power}"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and not _OTHER.fullmatch(value):
        return value
    return '"' + "".join(map(_quoted, value)) + '"'


def _quoted(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}"


def _comment(lines: Sequence[str], indent: str) -> Iterator[str]:
    for line in lines:
        yield f"{indent}# {line}".rstrip()
