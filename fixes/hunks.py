r"""Hunks: exact replacements of whole lines, on bytes.

A hunk matches completely and in exactly one place of a file, or it does not apply. There
is no fuzz; an offset (the lines a place is away from the one that was recorded) is allowed
and reported. Line endings and a missing final newline are part of the bytes. A line ends
with ``\n`` and with nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hunk:
    """Lines ``old`` at 1-based ``line`` of the pre-image become ``new``.

    Both are whole lines as bytes, line endings included. Only the last line may lack its
    newline, and then it matches nowhere but at the end of the file. ``old`` is never empty.
    """

    line: int
    old: bytes
    new: bytes


@dataclass(frozen=True)
class Applied:
    """A post-image, and for each hunk how many lines it was away from its ``line``."""

    data: bytes
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Failure:
    """Why the hunk at ``index``, recorded at ``line``, does not apply.

    ``kind`` is ``drifted``, ``ambiguous``, ``crlf-mismatch``, ``no-final-newline``,
    ``out-of-order``, ``overlap`` or, for a hunk that could have no place anywhere, ``empty``.
    """

    index: int
    line: int
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"hunk {self.index + 1} (line {self.line}): {self.kind}: {self.detail}"


class HunkError(Exception):
    """Hunks that do not apply to a file, all of them."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("; ".join(str(failure) for failure in failures))
        self.failures = tuple(failures)


def locate(data: bytes, hunk: Hunk) -> int:
    """The byte position of the only place where ``hunk`` matches. Raises HunkError."""
    found = _place(data, hunk, 0, hunk.line)
    if isinstance(found, Failure):
        raise HunkError([found])
    return found


def apply(data: bytes, hunks: Sequence[Hunk]) -> Applied:
    """Apply ``hunks``, each located in ``data`` as given, in ascending order and disjoint.

    Raises HunkError naming every hunk that does not apply.
    """
    failures: list[Failure] = []
    offsets: list[int] = []
    pieces: list[bytes] = []
    start = end = 0  # the last hunk that was located
    line = 1  # of ``start``
    for index, hunk in enumerate(hunks):
        place = _place(data, hunk, index, hunk.line + sum(offsets[-1:]))
        if isinstance(place, Failure):
            failures.append(place)
        elif place < end:
            kind, how = ("out-of-order", "before") if place < start else ("overlap", "within")
            detail = f"matches at line {_line(data, place)}, {how} the hunk ahead of it"
            failures.append(Failure(index, hunk.line, kind, detail))
        else:
            line += data.count(b"\n", start, place)
            offsets.append(line - hunk.line)
            pieces += (data[end:place], hunk.new)
            start, end = place, place + len(hunk.old)
    if failures:
        raise HunkError(failures)
    return Applied(b"".join((*pieces, data[end:])), tuple(offsets))


def reverse(hunks: Iterable[Hunk]) -> tuple[Hunk, ...]:
    """The hunks that take a post-image back, numbered by the lines of the post-image.

    Where they apply they restore the pre-image exactly. They may be refused: a ``new`` that
    is empty, or occurs in the post-image a second time, cannot be found again.
    """
    back = []
    growth = 0
    for hunk in hunks:
        back.append(Hunk(hunk.line + growth, hunk.new, hunk.old))
        # Only the last hunk of a file may lack a newline, and nothing is numbered behind it.
        growth += hunk.new.count(b"\n") - hunk.old.count(b"\n")
    return tuple(back)


def between(
    pre: bytes, post: bytes, spans: Iterable[tuple[int, int, bytes]] | None = None
) -> tuple[Hunk, ...]:
    """The hunks that turn ``pre`` into ``post``, and whose reverse turns it back.

    What changed is found by comparing lines, or given as ``spans``: ascending, disjoint byte
    ranges ``(start, end, replacement)`` of ``pre``. Each change gets as many lines of context
    on both sides as make its ``old`` unique in ``pre`` and its ``new`` unique in ``post``, at
    least one where there is one; changes whose context meets become one hunk.

    Raises ValueError for an empty file, and for ``spans`` that do not lead to ``post``.
    """
    if pre == post:
        return ()
    if not pre or not post:
        raise ValueError("an empty file has no lines to find a hunk by")
    changes = _widened(pre, post, _differences(pre, post) if spans is None else spans)
    grown: list[_Change] = []
    while (index := len(grown)) < len(changes):
        last = index + 1 == len(changes)
        change = _grow(pre, post, changes[index], len(pre) if last else changes[index + 1][0])
        everything = change[:2] == (0, len(pre))
        if index and (everything or change[0] < grown[-1][1]):
            index -= 1
        elif last or not (everything or change[1] > changes[index + 1][0]):
            grown.append(change)
            continue
        first, second = changes[index : index + 2]
        changes[index : index + 2] = [(first[0], second[1], first[2], second[3])]
        del grown[index:]
    made = (Hunk(_line(pre, a), pre[a:b], post[c:d]) for a, b, c, d in grown)
    return tuple(hunk for hunk in made if hunk.old != hunk.new)


def _place(data: bytes, hunk: Hunk, index: int, expected: int) -> int | Failure:
    places = _places(data, hunk.old)
    if len(places) == 1:
        place = places[0]
        if hunk.new[-1:] in (b"", b"\n") or place + len(hunk.old) == len(data):
            return place
        kind = "no-final-newline"
        detail = "would join two lines: its new lines lack a newline, and more lines follow"
    elif places:
        kind = "ambiguous"
        detail = f"matches at lines {', '.join(str(_line(data, at)) for at in places)}"
    else:
        kind, detail = _diagnose(data, hunk.old, expected)
    return Failure(index, hunk.line, kind, detail)


def _places(data: bytes, old: bytes) -> list[int]:
    """Every byte position where the lines ``old`` occur, overlapping occurrences too."""
    if not old.endswith(b"\n"):
        place = len(data) - len(old)
        return [place] if old and data.endswith(old) and _at_line(data, place) else []
    places = [0] if data.startswith(old) else []
    needle = b"\n" + old
    place = data.find(needle)
    while place >= 0:
        places.append(place + 1)
        place = data.find(needle, place + 1)
    return places


def _diagnose(data: bytes, old: bytes, expected: int) -> tuple[str, str]:
    if not old:
        return "empty", "no old lines to find its place by"
    if data[-1:] != b"\n" and _places(data + b"\n", old):
        return "no-final-newline", "matches but for the newline that the file's end lacks"
    if not old.endswith(b"\n") and _places(data, old + b"\n"):
        return "no-final-newline", "matches but for the newline that its old lines lack"
    if _places(data.replace(b"\r\n", b"\n"), old.replace(b"\r\n", b"\n")):
        ending = "LF" if b"\r\n" in old else "CRLF"
        return "crlf-mismatch", f"matches but for line endings: the file has {ending}"
    lines = data.split(b"\n")
    for number, wanted in enumerate(old.removesuffix(b"\n").split(b"\n"), max(expected, 1)):
        if number > len(lines):
            return "drifted", f"line {number} is past the end of the file"
        if lines[number - 1] != wanted:
            return "drifted", f"line {number} is {lines[number - 1]!r}, expected {wanted!r}"
    return "drifted", "matches only as a part of the file's last line or lines"


def _at_line(data: bytes, place: int) -> bool:
    return data[max(place - 1, 0) : place] in (b"", b"\n")


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


_Change = tuple[int, int, int, int]  # start and end in the pre-image, then in the post-image


def _differences(pre: bytes, post: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The ranges of ``pre``, whole lines, that ``post`` has otherwise, and what it has there."""
    import difflib
    from io import BytesIO
    from itertools import accumulate

    old, new = BytesIO(pre).readlines(), BytesIO(post).readlines()
    at = list(accumulate(map(len, old), initial=0))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield at[start], at[end], b"".join(new[new_start:new_end])


def _widened(pre: bytes, post: bytes, spans: Iterable[tuple[int, int, bytes]]) -> list[_Change]:
    """``spans`` widened to whole lines of both images; those that then touch are one."""
    changes: list[_Change] = []
    pieces: list[bytes] = []
    done = growth = 0
    for start, end, new in spans:
        pieces += (pre[done:start], new)
        first = new_first = pre.rfind(b"\n", 0, start) + 1
        new_first += growth
        growth += len(new) - (end - start)
        done = last = end
        if not (_at_line(pre, end) and _at_line(post, end + growth)):
            last = pre.find(b"\n", end) + 1 or len(pre)
        if changes and first <= changes[-1][1]:
            first, _, new_first, _ = changes.pop()
        changes.append((first, last, new_first, last + growth))
    if b"".join((*pieces, pre[done:])) != post:
        raise ValueError("the spans do not lead to the post-image")
    return changes


def _grow(pre: bytes, post: bytes, change: _Change, high: int) -> _Change:
    """``change`` with context that makes it unique, or as soon as that goes past ``high``."""
    start, end, new_start, new_end = change
    while True:
        before = pre.rfind(b"\n", 0, start - 1) + 1 if start else 0
        after = pre.find(b"\n", end) + 1 or len(pre)
        new_start -= start - before
        new_end += after - end
        start, end = before, after
        if end > high or (start, end) == (0, len(pre)):
            break
        old, new = pre[start:end], post[new_start:new_end]
        if len(_places(pre, old)) == len(_places(post, new)) == 1:
            break
    return start, end, new_start, new_end
