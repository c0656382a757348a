"""DEFLATE of our own: any bytes come back, and always by the same bytes."""

from __future__ import annotations

import hashlib
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixes import deflate

pieces = st.lists(
    st.sampled_from([b"a", b"ab", b"    return ", bytes(300), b"\xff\0"]) | st.binary()
)


def inflated(packed: bytes) -> bytes:
    """By zlib, which has to find the end where it is."""
    engine = zlib.decompressobj(-15)
    data = engine.decompress(packed)
    assert engine.eof and not engine.unused_data
    return data


@given(pieces)
def test_what_is_compressed_comes_back(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert inflated(deflate.compress(data)) == data
    assert zlib.decompress(deflate.zlib_stream(data)) == data


@pytest.mark.parametrize("size", [0, 1, 3, 4, 257, 258, 259, 32768, 32769, 70000])
@pytest.mark.parametrize("kind", ["one", "noise", "far"])
def test_at_the_limits_of_the_format(size: int, kind: str) -> None:
    noise = random.Random(size).randbytes(size)
    data = {"one": bytes(size), "noise": noise, "far": (noise[:32768] * 3)[: 2 * size]}[kind]
    assert inflated(deflate.compress(data)) == data


def test_skewed_counts_stay_within_the_longest_code() -> None:
    """Fibonacci numbers make the deepest tree there is."""
    counts = [1, 1]
    while len(counts) < 24:
        counts.append(counts[-1] + counts[-2])
    data = b"".join(bytes([symbol]) * count for symbol, count in enumerate(counts))
    shuffled = bytes(random.Random(1).sample(data, len(data)))
    assert inflated(deflate.compress(shuffled)) == shuffled


def test_it_compresses_as_zlib_does() -> None:
    source = Path(deflate.__file__).read_bytes()
    assert len(deflate.compress(source)) < 1.03 * len(zlib.compress(source, 9))


def test_the_bytes_do_not_change() -> None:
    """What was made by one version of this module is made by the next, or the docs say so."""
    data = b"".join(b"%d times %d is %d\n" % (n, n + 7, n * (n + 7)) for n in range(3000))
    made = hashlib.sha256(deflate.compress(data)).hexdigest()
    assert made == "5d5c25c134aa6bc9819a8614c6bb157d626a596a76016a8f235fca17c88d9598"
