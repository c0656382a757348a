"""Hunks: the only place or none, all failures at once, and back again."""

from __future__ import annotations

import contextlib
import difflib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fixes import hunks
from fixes.hunks import Applied, Failure, Hunk, HunkError

#: A real file of some size: the standard library's.
REAL = Path(difflib.__file__).read_bytes()

#: Few and treacherous lines, so that blocks repeat.
LINES = st.sampled_from(
    [
        b"a\n",
        b"b\n",
        b"\n",
        b"\r\n",
        b"a\r\n",
        b"\ra\n",
        b"\tx \n",
        b"x\x0cy\n",
        "\x85 \u2028 \u00e9\n".encode(),
        b"\xff\xfe\n",
        b"+++ b/x\n",
        b"--- a/x\n",
        b"@@ -1 +1 @@\n",
        b"-- \n",
        b"\\ No newline at end of file\n",
    ]
)


@st.composite
def files(draw: st.DrawFn, least: int = 1) -> bytes:
    data = b"".join(draw(st.lists(LINES, min_size=least, max_size=14)))
    if data.strip(b"\n") and draw(st.booleans()):
        data = data.rstrip(b"\n")
    return data


@st.composite
def versions(draw: st.DrawFn) -> tuple[bytes, bytes, list[tuple[int, int, bytes]]]:
    """A file, another made from it by replacing byte ranges, and these."""
    pre = draw(files())
    assume(pre)
    cuts = sorted(draw(st.lists(st.integers(0, len(pre)), max_size=6)))
    spans = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        spans.append((start, end, draw(st.sampled_from([b"", b"a", b"\n", b"b\n", b"z\nz\n"]))))
    pieces, done = [], 0
    for start, end, new in spans:
        pieces += [pre[done:start], new]
        done = end
    return pre, b"".join(pieces) + pre[done:], spans


def failures(data: bytes, *given: Hunk) -> list[tuple[int, str]]:
    with pytest.raises(HunkError) as caught:
        hunks.apply(data, given)
    return [(failure.index, failure.kind) for failure in caught.value.failures]


def failure(data: bytes, *given: Hunk) -> Failure:
    with pytest.raises(HunkError) as caught:
        hunks.apply(data, given)
    (only,) = caught.value.failures
    return only


def test_applies_with_offsets_counted_in_the_pre_image() -> None:
    data = b"0\na\nb\nc\nd\ne\n"
    given = (Hunk(1, b"a\n", b"A\nA\nA\n"), Hunk(4, b"d\n", b""), Hunk(6, b"e\n", b"E\n"))
    assert hunks.apply(data, given) == Applied(b"0\nA\nA\nA\nb\nc\nE\n", (1, 1, 0))


def test_nothing_to_apply() -> None:
    assert hunks.apply(b"a\n", ()) == Applied(b"a\n", ())


def test_locate_gives_the_byte_position() -> None:
    assert hunks.locate(b"xa\na\nb\n", Hunk(9, b"a\n", b"")) == 3
    with pytest.raises(HunkError, match=r"^hunk 1 \(line 9\): drifted: line 9 is past the end"):
        hunks.locate(b"xa\n", Hunk(9, b"a\n", b""))


@pytest.mark.parametrize("data", [b"xa\nb\n", b"a\nbx\n", b"a\nb", b"", b"a b\n"])
def test_matches_only_whole_lines(data: bytes) -> None:
    failures(data, Hunk(1, b"a\nb\n", b"c\n"))


def test_hunks_that_touch_are_disjoint() -> None:
    given = (Hunk(1, b"a\n", b"1\n"), Hunk(2, b"b\n", b"2\n"))
    assert hunks.apply(b"a\nb\n", given).data == b"1\n2\n"


def test_all_hunks_are_located_in_the_pre_image() -> None:
    # What the first hunk writes is not a second place for the second one.
    given = (Hunk(1, b"a\n", b"b\n"), Hunk(2, b"b\n", b"c\n"))
    assert hunks.apply(b"a\nb\n", given).data == b"b\nc\n"


def test_ambiguous_names_every_place() -> None:
    found = failure(b"a\nb\nx\na\nb\n", Hunk(4, b"a\nb\n", b""))
    assert (found.kind, found.detail) == ("ambiguous", "matches at lines 1, 4")


def test_overlapping_places_count() -> None:
    found = failure(b"x\nx\nx\nx\n", Hunk(1, b"x\nx\n", b"y\n"))
    assert found.detail == "matches at lines 1, 2, 3"
    assert failure(b"\n\n\n", Hunk(1, b"\n\n", b"y\n")).detail == "matches at lines 1, 2"


def test_part_of_a_longer_line_is_no_second_place() -> None:
    assert hunks.apply(b"ba\na\na b\n", [Hunk(2, b"a\n", b"c\n")]).data == b"ba\nc\na b\n"


def test_drifted_says_the_first_line_that_differs() -> None:
    found = failure(b"1\n2\n3\n", Hunk(1, b"1\ntwo\n3\n", b""))
    assert found == Failure(0, 1, "drifted", "line 2 is b'2', expected b'two'")


def test_drifted_looks_where_the_hunk_ahead_of_it_was() -> None:
    data = b"0\n0\n1\n2\n3\n"
    with pytest.raises(HunkError) as caught:
        hunks.apply(data, [Hunk(1, b"1\n", b"i\n"), Hunk(2, b"2\n4\n", b"")])
    assert caught.value.failures[0].detail == "line 5 is b'3', expected b'4'"


def test_drifted_where_only_the_end_of_a_line_is_missing() -> None:
    found = failure(b"a\nbc\n", Hunk(1, b"a\nb", b"x"))
    assert (found.kind, found.detail) == ("drifted", "line 2 is b'bc', expected b'b'")


@pytest.mark.parametrize(
    ("data", "old", "has"), [(b"a\r\nb\r\n", b"a\nb\n", "CRLF"), (b"a\nb\n", b"a\r\nb\r\n", "LF")]
)
def test_crlf_mismatch(data: bytes, old: bytes, has: str) -> None:
    found = failure(data, Hunk(1, old, b""))
    assert found.kind == "crlf-mismatch"
    assert found.detail.endswith(f"the file has {has}")


@pytest.mark.parametrize(
    ("data", "old"),
    [(b"a\nb", b"a\nb\n"), (b"a\nb\n", b"a\nb"), (b"a\nb\nc\n", b"a\nb"), (b"a\n\nb", b"\nb\n")],
)
def test_a_missing_final_newline_is_named(data: bytes, old: bytes) -> None:
    assert failure(data, Hunk(1, old, b"")).kind == "no-final-newline"


def test_an_old_blank_line_is_no_missing_newline() -> None:
    assert failure(b"a\nb\n", Hunk(1, b"a\n\n", b"")).kind == "drifted"


def test_without_final_newline_matches_at_the_end_alone() -> None:
    given = [Hunk(3, b"a", b"c\n")]
    assert hunks.apply(b"a\nb\na", given) == Applied(b"a\nb\nc\n", (0,))


def test_lines_are_never_joined() -> None:
    found = failure(b"a\nb\n", Hunk(1, b"a\n", b"c"))
    assert found.kind == "no-final-newline"
    assert hunks.apply(b"a\nb\n", [Hunk(2, b"b\n", b"c")]).data == b"a\nc"


def test_a_hunk_without_old_lines_has_no_place() -> None:
    assert failures(b"a\n", Hunk(1, b"", b"b\n")) == [(0, "empty")]
    assert failures(b"", Hunk(1, b"", b"b\n")) == [(0, "empty")]


def test_out_of_order_and_overlap() -> None:
    data = b"1\n2\n3\n4\n"
    first, second = Hunk(1, b"1\n2\n", b""), Hunk(3, b"3\n4\n", b"")
    assert failures(data, second, first) == [(1, "out-of-order")]
    assert failures(data, first, Hunk(2, b"2\n3\n", b"")) == [(1, "overlap")]
    assert failures(data, first, first) == [(1, "overlap")]


def test_all_failures_at_once() -> None:
    given = (
        Hunk(9, b"9\n", b""),
        Hunk(1, b"2\n", b"two\n"),
        Hunk(1, b"1\n", b""),
        Hunk(1, b"d\n", b""),
        Hunk(1, b"e\n", b""),
    )
    assert failures(b"1\n2\nd\nd\ne\r\n", *given) == [
        (0, "drifted"),
        (2, "out-of-order"),
        (3, "ambiguous"),
        (4, "crlf-mismatch"),
    ]


def test_reverse_numbers_by_the_post_image() -> None:
    given = (Hunk(1, b"a\n", b"1\n2\n"), Hunk(3, b"c\nd\n", b"3\n"), Hunk(9, b"i\n", b"j"))
    assert hunks.reverse(given) == (
        Hunk(1, b"1\n2\n", b"a\n"),
        Hunk(4, b"3\n", b"c\nd\n"),
        Hunk(9, b"j", b"i\n"),
    )


def test_a_deletion_without_context_has_no_way_back() -> None:
    given = (Hunk(1, b"a\n", b""),)
    assert failures(hunks.apply(b"a\nb\n", given).data, *hunks.reverse(given)) == [(0, "empty")]


def test_between_takes_one_line_of_context_where_that_is_enough() -> None:
    pre = b"a\nb\nc\nd\ne\nf\ng\n"
    assert hunks.between(pre, pre.replace(b"d", b"D")) == (Hunk(3, b"c\nd\ne\n", b"c\nD\ne\n"),)
    assert hunks.between(pre, b"0\n" + pre) == (Hunk(1, b"a\n", b"0\na\n"),)
    assert hunks.between(pre, pre + b"h") == (Hunk(7, b"g\n", b"g\nh"),)
    assert hunks.between(pre, pre[:-1]) == (Hunk(6, b"f\ng\n", b"f\ng"),)


def test_between_takes_more_where_the_block_repeats() -> None:
    pre = b"1\nx\ny\nz\n2\nx\ny\nz\n3\n"
    post = b"1\nx\ny\nz\n2\nx\nY\nz\n3\n"
    assert hunks.between(pre, post) == (Hunk(5, b"2\nx\ny\nz\n3\n", b"2\nx\nY\nz\n3\n"),)
    # Unique in the pre-image is not enough: the way back has to be unique as well.
    assert hunks.between(post, pre) == hunks.reverse(hunks.between(pre, post))


def test_between_merges_where_context_meets() -> None:
    pre = b"a\nb\nc\nd\ne\nf\ng\n"
    apart = hunks.between(pre, b"a\nB\nc\nd\nE\nf\ng\n")
    assert apart == (Hunk(1, b"a\nb\nc\n", b"a\nB\nc\n"), Hunk(4, b"d\ne\nf\n", b"d\nE\nf\n"))
    met = hunks.between(pre, b"a\nB\nc\nD\ne\nf\ng\n")
    assert met == (Hunk(1, b"a\nb\nc\nd\ne\n", b"a\nB\nc\nD\ne\n"),)


def test_between_by_spans_keeps_to_the_spans() -> None:
    # By lines alone the second ``x`` is new; by the span it is the first.
    pre, post = b"a\nx\nb\n", b"a\nx\nx\nb\n"
    assert hunks.between(pre, post, [(2, 2, b"x\n")]) == (Hunk(1, b"a\nx\n", b"a\nx\nx\n"),)
    assert hunks.between(pre, post, [(4, 4, b"x\n")]) == (Hunk(2, b"x\nb\n", b"x\nx\nb\n"),)
    assert hunks.between(pre, b"a\nX = x\nb\n", [(2, 2, b"X = ")]) == (
        Hunk(1, b"a\nx\nb\n", b"a\nX = x\nb\n"),
    )


def test_between_refuses_what_no_hunk_can_say() -> None:
    assert hunks.between(b"", b"") == ()
    for pre, post in ((b"", b"a\n"), (b"a\n", b"")):
        with pytest.raises(ValueError, match="empty file"):
            hunks.between(pre, post)
    with pytest.raises(ValueError, match="do not lead to"):
        hunks.between(b"a\n", b"b\n", [(0, 1, b"c")])


@given(versions(), st.booleans())
@settings(max_examples=250, deadline=None)
def test_between_leads_there_and_back(
    made: tuple[bytes, bytes, list[tuple[int, int, bytes]]], by_spans: bool
) -> None:
    pre, post, spans = made
    assume(post)
    found = hunks.between(pre, post, spans if by_spans else None)
    there = hunks.apply(pre, found)
    back = hunks.apply(post, hunks.reverse(found))
    assert (there.data, back.data) == (post, pre)
    assert not any(there.offsets + back.offsets)
    assert all(hunk.old != hunk.new for hunk in found)


@given(files(), files())
@settings(max_examples=150, deadline=None)
def test_between_any_two_files(pre: bytes, post: bytes) -> None:
    assume(pre and post)
    found = hunks.between(pre, post)
    assert hunks.apply(pre, found).data == post
    assert hunks.apply(post, hunks.reverse(found)).data == pre


@given(files(), st.lists(st.tuples(st.integers(0, 14), files(), files(0)), max_size=3))
@settings(max_examples=200, deadline=None)
def test_what_is_accepted_both_ways_is_restored(
    data: bytes, loose: list[tuple[int, bytes, bytes]]
) -> None:
    given = [Hunk(line, old, new) for line, old, new in loose if old]
    lines = data.split(b"\n")
    # Arbitrary hunks seldom match: add one that is a part of the file.
    given.append(Hunk(2, b"".join(line + b"\n" for line in lines[1:3]), b"b\na\n"))
    for some in (given, given[-1:]):
        with contextlib.suppress(HunkError):
            post = hunks.apply(data, some).data
            assert hunks.apply(post, hunks.reverse(some)).data == data


@given(files(3), st.data())
@settings(max_examples=200, deadline=None)
def test_a_match_is_where_all_lines_are(data: bytes, draw: st.DataObject) -> None:
    """By an independent search, line by line: one place or none."""
    lines = data.split(b"\n")
    ends = data.endswith(b"\n")
    whole = [line + b"\n" for line in lines[:-1]] + ([] if ends else [lines[-1]])
    start = draw.draw(st.integers(0, len(whole) - 1))
    size = draw.draw(st.integers(1, len(whole) - start))
    block = whole[start : start + size]
    places = [n for n in range(len(whole)) if whole[n : n + size] == block]
    given = Hunk(1, b"".join(block), b"new\n")
    if len(places) == 1:
        assert hunks.apply(data, [given]).offsets == (places[0],)
    else:
        found = failure(data, given)
        named = ", ".join(str(place + 1) for place in places)
        assert (found.kind, found.detail) == ("ambiguous", f"matches at lines {named}")


def test_any_byte_changed_inside_the_pre_image_is_refused() -> None:
    post = REAL.replace(b"def ratio(self):", b"def ratio(self, exact=True):")
    (hunk,) = hunks.between(REAL, post)
    lines = REAL.split(b"\n")
    wide = b"".join(line + b"\n" for line in lines[hunk.line - 8 : hunk.line + 12])
    hunk = Hunk(hunk.line - 7, wide, wide.replace(b"ratio(self)", b"ratio(self, exact)"))
    place = hunks.locate(REAL, hunk)
    for at in range(place, place + len(hunk.old)):
        for byte in {0x0A, 0x0D, 0x20, REAL[at] ^ 1} - {REAL[at]}:
            changed = REAL[:at] + bytes([byte]) + REAL[at + 1 :]
            with pytest.raises(HunkError):
                hunks.locate(changed, hunk)


def test_a_second_copy_anywhere_is_refused() -> None:
    lines = REAL.split(b"\n")
    block = b"".join(line + b"\n" for line in lines[200:207])
    hunk = Hunk(201, block, b"new\n")
    assert hunks.apply(REAL, [hunk]).offsets == (0,)
    for line in range(0, len(lines), 40):
        copy = [*lines[:line], *block.split(b"\n")[:-1], *lines[line:]]
        if 200 < line < 207:
            continue
        found = failure(b"\n".join(copy), hunk)
        assert found.kind == "ambiguous"
        assert len(found.detail.split(",")) == 2


def test_ten_thousand_hunks_are_linear() -> None:
    """Ten times as many files take about ten times as long, and little of it."""
    lines = REAL.split(b"\n")
    step = len(lines) // 11
    post = b"\n".join(line + b" #" if n % step == 5 else line for n, line in enumerate(lines))
    made = hunks.between(REAL, post)
    assert len(made) >= 10

    def seconds(count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            assert hunks.apply(REAL, made).data == post
        return time.process_time() - start

    seconds(20)
    few = min(seconds(100) for _ in range(3))
    many = seconds(1000)
    assert many < 20 * few
    assert many < 10


def test_the_hot_path_imports_no_more_than_dataclasses() -> None:
    code = (
        "import __future__, dataclasses, sys; known = set(sys.modules); import fixes.hunks;"
        "print(*sorted(set(sys.modules) - known))"
    )
    root = str(Path(hunks.__file__).parents[1])
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == ["fixes", "fixes.hunks"]
