"""Signs of faults in a server's log: which fixes' literal substrings occur in it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import BinaryIO, NamedTuple

#: Select Graphic Rendition of ECMA-48: vLLM colours its prefixes on a terminal.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: How a server, an engine and a headless node name their release (0.26.0 to 0.33.0).
_RELEASE = re.compile(
    r"(?:V1 LLM engine|Launching vLLM) \(v([^)\s]+)\)|(?:vLLM server|█ ) version ([^,\s]+)"
)
#: How a file begins that is not plain UTF-8 (a redirection of PowerShell makes UTF-16).
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: Characters of a line that are told: some lines hold a whole configuration.
_TOLD = 160


class Found(NamedTuple):
    """A line that holds a substring: its log and number, from 1, and the text around that."""

    log: str
    line: int
    text: str


class Signs(NamedTuple):
    """What a log holds: ``faults`` by fix, the first group of signs that occurs completely;
    ``releases`` of vLLM, as the log names them; and how many ``lines`` there were.
    """

    faults: dict[str, tuple[Found, ...]]
    releases: tuple[str, ...]
    lines: int


def lines(stream: BinaryIO) -> Iterator[str]:
    """The lines of a log as its byte order mark says, UTF-8 without one; any bytes give lines."""
    start = stream.read(len(max(_MARKS, key=len)))
    encoding = next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")
    rest = ""
    for text in codecs.iterdecode(
        chain([start], iter(lambda: stream.read(1 << 16), b"")), encoding, "replace"
    ):
        *whole, rest = (rest + text).split("\n")
        yield from whole
    if rest:
        yield rest


def search(
    logs: Mapping[str, Iterable[str]], wanted: Mapping[str, Collection[tuple[str, ...]]]
) -> Signs:
    """Look for the ``wanted`` groups of substrings of each fix, in one pass over named logs.

    A group occurs when each of its substrings is in some line of some log; where it occurs
    several times the first line is told.
    """
    missing = {sign for groups in wanted.values() for group in groups for sign in group}
    first: dict[str, Found] = {}
    releases: dict[str, None] = {}
    count = 0
    for log, held in logs.items():
        for number, raw in enumerate(held, 1):
            count += 1
            line = _COLOUR.sub("", raw).strip()
            if named := _RELEASE.search(line):
                releases[named[1] or named[2]] = None
            for sign in [sign for sign in missing if sign in line]:
                first[sign] = Found(log, number, _around(line, sign))
                missing.remove(sign)
    faults = {}
    for fix, groups in wanted.items():
        for group in groups:
            if all(sign in first for sign in group):
                faults[fix] = tuple(sorted({first[sign] for sign in group}))
                break
    return Signs(faults, tuple(releases), count)


def _around(line: str, sign: str) -> str:
    """As much of a long line as is told, with the sign in it."""
    if len(line) <= _TOLD:
        return line
    end = min(len(line), max(_TOLD, line.index(sign) + len(sign) + _TOLD // 4))
    start = max(0, min(end - _TOLD, line.index(sign)))
    return ("... " if start else "") + line[start:end] + (" ..." if end < len(line) else "")
