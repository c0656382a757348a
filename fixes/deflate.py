"""Compression whose bytes are always the same: a plain encoder of DEFLATE (RFC 1951).

What `zlib` makes of the same bytes depends on which zlib Python was linked with: zlib-ng, which
several distributions have put in its place, compresses otherwise. What is to be the same to the
byte wherever it is made cannot rest on that. This is slower by far (a megabyte takes some
seconds), and inflates by anything that knows the format.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

#: Of the format: the shortest match that pays, the longest there is, how far back it may lie.
_SHORTEST, _LONGEST, _WINDOW = 4, 258, 32768
#: How many places are tried for a match, and the length that ends the search.
_TRIED, _ENOUGH = 16, 64
#: Tokens of one block, which has codes of its own.
_BLOCK = 1 << 15
_END = 256
#: Order in which the lengths of the code-length code are written (RFC 1951, 3.2.7).
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
#: A literal, or a match as (length, distance).
_Token = int | tuple[int, int]
#: A symbol's code with its bits in the order of writing, and how many they are.
_Code = dict[int, tuple[int, int]]


def compress(data: bytes) -> bytes:
    """Raw DEFLATE, as in a zip file."""
    tokens = _tokens(data)
    bits = _Bits()
    starts = range(0, len(tokens), _BLOCK) or (0,)
    for start in starts:
        _write_block(bits, tokens[start : start + _BLOCK], last=start == starts[-1])
    return bits.finish()


def zlib_stream(data: bytes) -> bytes:
    """The same with the header and checksum of the zlib format (RFC 1950)."""
    return b"\x78\xda" + compress(data) + zlib.adler32(data).to_bytes(4, "big")


def _steps(first: int, codes: int, per_step: int) -> tuple[tuple[int, int], ...]:
    """First value and number of extra bits of each code that stands for a range of values."""
    found = []
    for code in range(codes):
        extra = max(0, code // per_step - 1)
        found.append((first, extra))
        first += 1 << extra
    return tuple(found)


_LENGTHS = (*_steps(3, 28, 4), (_LONGEST, 0))
_DISTANCES = _steps(1, 30, 2)
#: Length or distance to the place of its range in the two above.
_LENGTH_CODE = [0] * (_LONGEST + 1)
_DISTANCE_CODE = [0] * (_WINDOW + 1)
for _table, _ranges in ((_LENGTH_CODE, _LENGTHS), (_DISTANCE_CODE, _DISTANCES)):
    for _code, (_first, _extra) in enumerate(_ranges):
        _table[_first : _first + (1 << _extra)] = [_code] * (1 << _extra)


def _tokens(data: bytes) -> list[_Token]:
    """Literals and matches; a match gives way to a longer one that starts one byte later."""
    finder = _Finder(data)
    tokens: list[_Token] = []
    place, size = 0, len(data)
    length, distance = finder.longest(0, 0)
    while place < size:
        if not length:
            tokens.append(data[place])
            place += 1
            length, distance = finder.longest(place, 0)
            continue
        later = (0, 0) if length >= _ENOUGH else finder.longest(place + 1, length)
        if later[0]:
            tokens.append(data[place])
            place += 1
            length, distance = later
            continue
        tokens.append((length, distance))
        place += length
        length, distance = finder.longest(place, 0)
    return tokens


class _Finder:
    """Places where the same bytes stood before."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._latest: dict[bytes, int] = {}
        self._before = [-1] * len(data)
        self._known = 0

    def _learn(self, end: int) -> None:
        data, latest, before = self._data, self._latest, self._before
        for place in range(self._known, end):
            key = data[place : place + _SHORTEST]
            before[place] = latest.get(key, -1)
            latest[key] = place
        self._known = max(self._known, end)

    def longest(self, place: int, least: int) -> tuple[int, int]:
        """The longest match longer than ``least`` and how far back it lies, the nearest of
        these; (0, 0) for none.
        """
        data = self._data
        self._learn(min(place, len(data)))
        best, where = max(least, _SHORTEST - 1), -1
        limit = min(_LONGEST, len(data) - place)
        other = self._latest.get(data[place : place + _SHORTEST], -1) if limit > best else -1
        for _ in range(_TRIED):
            if other < 0 or place - other > _WINDOW:
                break
            if data[other : other + best + 1] == data[place : place + best + 1]:
                best, where = self._extent(other, place, best + 1, limit), other
                if best >= min(limit, _ENOUGH):
                    break
            other = self._before[other]
        return (best, place - where) if where >= 0 else (0, 0)

    def _extent(self, other: int, place: int, same: int, limit: int) -> int:
        """How many bytes agree, of which ``same`` are known to."""
        data = self._data
        while same < limit:
            step = min(16, limit - same)
            if data[other + same : other + same + step] == data[place + same : place + same + step]:
                same += step
                continue
            while data[other + same] == data[place + same]:
                same += 1
            break
        return same


def _write_block(bits: _Bits, tokens: Sequence[_Token], last: bool) -> None:
    """One block with dynamic codes (RFC 1951, 3.2.7)."""
    literals, distances = Counter([_END]), Counter[int]()
    for token in tokens:
        if isinstance(token, int):
            literals[token] += 1
        else:
            literals[257 + _LENGTH_CODE[token[0]]] += 1
            distances[_DISTANCE_CODE[token[1]]] += 1
    widths = _widths(literals, 15), _widths(distances, 15)
    counts = max(257, max(widths[0]) + 1), max([0, *widths[1]]) + 1
    listed = [widths[0].get(symbol, 0) for symbol in range(counts[0])]
    listed += [widths[1].get(symbol, 0) for symbol in range(counts[1])]
    runs = list(_runs(listed))
    of_runs = _widths(Counter(symbol for symbol, _, _ in runs), 7)
    orders = max(4, *(_ORDER.index(symbol) + 1 for symbol in of_runs))
    bits.write(last | 2 << 1, 3)
    bits.write(counts[0] - 257, 5)
    bits.write(counts[1] - 1, 5)
    bits.write(orders - 4, 4)
    for symbol in _ORDER[:orders]:
        bits.write(of_runs.get(symbol, 0), 3)
    code = _codes(of_runs)
    for symbol, value, extra in runs:
        bits.write(*code[symbol])
        bits.write(value, extra)
    _write_tokens(bits, tokens, _codes(widths[0]), _codes(widths[1]))


def _write_tokens(bits: _Bits, tokens: Sequence[_Token], literals: _Code, distances: _Code) -> None:
    for token in tokens:
        if isinstance(token, int):
            bits.write(*literals[token])
            continue
        for value, table, ranges, codes, first in (
            (token[0], _LENGTH_CODE, _LENGTHS, literals, 257),
            (token[1], _DISTANCE_CODE, _DISTANCES, distances, 0),
        ):
            code = table[value]
            start, extra = ranges[code]
            bits.write(*codes[first + code])
            bits.write(value - start, extra)
    bits.write(*literals[_END])


def _runs(widths: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """Widths as symbols of the code-length code, each with a value in its extra bits."""
    place = 0
    while place < len(widths):
        width, count = widths[place], 1
        while place + count < len(widths) and widths[place + count] == width:
            count += 1
        place += count
        if width:
            yield width, 0, 0
            count -= 1
        while count >= (3 if width else 11):
            part = min(count, 6 if width else 138)
            yield (16, part - 3, 2) if width else (18, part - 11, 7)
            count -= part
        if count >= 3:
            yield 17, count - 3, 3
            count = 0
        yield from [(width, 0, 0)] * count


def _widths(counts: Counter[int], limit: int) -> dict[int, int]:
    """The bits of each symbol's code, none over the limit: package-merge (Larmore, Hirschberg)."""
    leaves = sorted((count, (symbol,)) for symbol, count in counts.items())
    if len(leaves) < 2:
        return dict.fromkeys(counts, 1)
    row: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(limit):
        pairs = zip(row[::2], row[1::2], strict=False)
        row = sorted([*leaves, *((one[0] + two[0], one[1] + two[1]) for one, two in pairs)])
    taken = row[: 2 * len(leaves) - 2]
    return dict(sorted(Counter(symbol for _, package in taken for symbol in package).items()))


def _codes(widths: dict[int, int]) -> _Code:
    """Canonical codes (RFC 1951, 3.2.2), their bits in the order of writing."""
    code, before, found = 0, 0, {}
    for width, symbol in sorted((width, symbol) for symbol, width in widths.items()):
        code <<= width - before
        before = width
        found[symbol] = int(f"{code:0{width}b}"[::-1], 2), width
        code += 1
    return found


class _Bits:
    """Bits, the lowest first."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._held = self._count = 0

    def write(self, value: int, count: int) -> None:
        """Some more bits."""
        self._held |= value << self._count
        self._count += count
        if self._count >= 256:
            self._out += (self._held & ((1 << 256) - 1)).to_bytes(32, "little")
            self._held >>= 256
            self._count -= 256

    def finish(self) -> bytes:
        """All bytes, the last one filled up with zeros."""
        return bytes(self._out) + self._held.to_bytes(-(-self._count // 8), "little")
