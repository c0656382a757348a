"""Our hunks against git apply and GNU patch, on the same diffs and files.

Sound: what we apply, both apply, to the same bytes. Complete: what both apply and we refuse
has a name in ``STRICTER``. Both anchor a hunk that has less context on one side than on the
other (or that begins at line 1, for git) to that end of the file, where we ask for exactly
one place instead: that is the one difference in which we apply what they refuse.
"""

from __future__ import annotations

import difflib
import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fixes import hunks
from fixes.authoring import diffs
from fixes.errors import FixesError
from fixes.hunks import HunkError

pytestmark = [
    pytest.mark.skipif(not shutil.which("git"), reason="needs git"),
    pytest.mark.skipif(not shutil.which("patch"), reason="needs GNU patch"),
    pytest.mark.skipif(not shutil.which("diff"), reason="needs GNU diff"),
]

#: Why we refuse what both others apply: the place or the way back is not certain.
STRICTER = {"ambiguous", "no-old-lines", "no-new-lines"}
#: Why we refuse a diff of which both others take a part, or which they read leniently.
STRICTER_READING = STRICTER | {
    "hunk-count",
    "hunk-header",
    "hunk-order",
    "no-change",
    "no-newline-marker",
    "path",
    "path-mismatch",
    "prefix",
    "stray-text",
    "truncated",
    "not-a-diff",
    "duplicate-file",
}

ODD = [
    b"a\n",
    b"a\r\n",
    b"\ra\n",
    b"\n",
    b"\r\n",
    b"\t a\t\n",
    b"a\x0cb\n",
    "\x85\u2028\u00e9\n".encode(),
    b"\xe9\xff\n",
    b"+++ b/x.py\n",
    b"--- a/x.py\n",
    b"-- \n",
    b"@@ -1 +1 @@\n",
    b"\\ No newline at end of file\n",
    b"diff --git a/x.py b/x.py\n",
]
LINES = st.lists(st.sampled_from(ODD), min_size=1, max_size=12)
EDITS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 2), st.lists(st.sampled_from(ODD), max_size=2)),
    max_size=3,
)
MAKERS = st.sampled_from(["difflib", "git", "diff"])
FAST = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60
)


@dataclass(frozen=True)
class Bench:
    """A folder outside any repository, and the tools in it."""

    root: Path

    def run(self, *command: str) -> tuple[int, bytes]:
        env = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C",
            "HOME": str(self.root),
            "GIT_CEILING_DIRECTORIES": str(self.root.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        done = subprocess.run(
            command, cwd=self.root, env=env, stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.returncode, done.stdout

    def diff(self, maker: str, pre: bytes, post: bytes, context: int) -> bytes:
        if maker == "difflib":
            old, new = io.BytesIO(pre).readlines(), io.BytesIO(post).readlines()
            made = difflib.diff_bytes(
                difflib.unified_diff, old, new, b"a/x.py", b"b/x.py", n=context
            )
            mark = b"\n\\ No newline at end of file\n"
            return b"".join(x if x.endswith(b"\n") else x + mark for x in made)
        for side, data in (("a", pre), ("b", post)):
            (self.root / side).mkdir(exist_ok=True)
            (self.root / side / "x.py").write_bytes(data)
        commands = {
            "git": ("git", "diff", "--no-index", "--text", "--no-prefix", f"-U{context}"),
            "diff": ("diff", "--text", f"-U{context}"),
        }
        return self.run(*commands[maker], "a/x.py", "b/x.py")[1]

    def applied(self, tool: str, diff: bytes, data: bytes) -> bytes | None:
        """The file after ``tool``, or None if that refused."""
        commands = {
            "git": ("git", "apply", "--whitespace=nowarn"),
            "git anywhere": ("git", "apply", "--whitespace=nowarn", "--unidiff-zero"),
            "patch": ("patch", "-p1", "-F0", "-N", "-s", "--binary", "-r-", "-i"),
        }
        file = self.root / "x.py"
        file.write_bytes(data)
        (self.root / "p.patch").write_bytes(diff)
        code, _ = self.run(*commands[tool], "p.patch")
        for orig in self.root.glob("x.py.*"):
            orig.unlink()
        if code:
            return None
        return file.read_bytes() if file.exists() else b""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield Bench(tmp_path_factory.mktemp("bench"))


def ours(diff: bytes, data: bytes) -> bytes | set[str]:
    """The file after us, or why we refuse."""
    try:
        (file,) = diffs.parse(diff, "p.patch")
        return hunks.apply(data, file.hunks).data
    except FixesError as error:
        return {problem.kind for problem in error.problems}
    except HunkError as error:
        return {failure.kind for failure in error.failures}


def joined(lines: list[bytes], newline: bool) -> bytes:
    data = b"".join(lines)
    return data if newline or data[:-1].endswith(b"\n") else data[:-1]


def edited(lines: list[bytes], edits: list[tuple[int, int, list[bytes]]]) -> list[bytes]:
    lines = list(lines)
    for at, size, new in edits:
        lines[at : at + size] = new
    return lines


def numbered(lines: list[bytes]) -> list[bytes]:
    """The same lines, no two of them equal."""
    made = []
    for number, line in enumerate(lines):
        text = line.rstrip(b"\r\n") if line.strip(b"\r\n") else b""
        made.append(text + b" %d" % number + line[len(text) :])
    return made


def leans(diff: bytes) -> bool:
    """Whether a hunk begins at line 1, or has less context on one side than on the other."""
    for hunk in diffs.patch.PatchSet(io.StringIO(diff.decode("utf-8", "replace"), newline="\n"))[0]:
        kinds = [line.line_type for line in hunk if line.line_type != "\\"]
        lead = next(n for n, kind in enumerate(kinds) if kind != " ")
        trail = next(n for n, kind in enumerate(reversed(kinds)) if kind != " ")
        if hunk.source_start <= 1 or lead != trail or not trail:
            return True
    return False


def compare(bench: Bench, diff: bytes, data: bytes, stricter: set[str]) -> bytes | set[str]:
    """Invariants 1 to 3 of the differential test, on one diff and one file."""
    mine = ours(diff, data)
    theirs = {tool: bench.applied(tool, diff, data) for tool in ("git", "patch")}
    if isinstance(mine, set):
        if None not in theirs.values():
            assert mine <= stricter, (diff, data, mine, theirs)
        return mine
    if theirs != {"git": mine, "patch": mine}:
        assert leans(diff), (diff, data, mine, theirs)
        assert {theirs["git"], theirs["patch"]} <= {mine, None}, (diff, data, mine, theirs)
        assert bench.applied("git anywhere", diff, data) == mine, (diff, data, mine)
    return mine


@given(LINES, EDITS, st.booleans(), st.booleans(), MAKERS, st.integers(1, 5))
@FAST
def test_unique_lines_lead_there_and_back(
    bench: Bench,
    lines: list[bytes],
    edits: list[tuple[int, int, list[bytes]]],
    newline: bool,
    new_newline: bool,
    maker: str,
    context: int,
) -> None:
    lines = numbered(lines)
    pre, post = joined(lines, newline), joined(edited(lines, edits), new_newline)
    assume(post and pre != post)
    diff = bench.diff(maker, pre, post, context)
    (file,) = diffs.parse(diff, "p.patch")
    there = hunks.apply(pre, file.hunks)
    assert there.data == post
    assert not any(there.offsets)
    try:
        assert hunks.apply(post, hunks.reverse(file.hunks)).data == pre
    except HunkError as error:
        assert {failure.kind for failure in error.failures} == {"ambiguous"}


@given(LINES, LINES, EDITS, st.booleans(), MAKERS, st.integers(0, 5))
@FAST
def test_any_two_files(
    bench: Bench,
    lines: list[bytes],
    other: list[bytes],
    edits: list[tuple[int, int, list[bytes]]],
    newline: bool,
    maker: str,
    context: int,
) -> None:
    pre = joined(lines, newline)
    post = joined(edited(lines, edits) if edits else other, newline)
    assume(post and pre != post)
    made = compare(bench, bench.diff(maker, pre, post, context), pre, STRICTER)
    assert made == post or (isinstance(made, set) and made <= STRICTER)


@given(LINES, EDITS, EDITS, st.booleans(), st.booleans(), st.integers(0, 3), st.booleans())
@FAST
def test_files_that_drifted(
    bench: Bench,
    lines: list[bytes],
    edits: list[tuple[int, int, list[bytes]]],
    drift: list[tuple[int, int, list[bytes]]],
    newline: bool,
    kept_newline: bool,
    context: int,
    unique: bool,
) -> None:
    lines = numbered(lines) if unique else lines
    pre, post = joined(lines, newline), joined(edited(lines, edits), newline)
    assume(post and pre != post)
    compare(
        bench,
        bench.diff("git", pre, post, context),
        joined(edited(lines, drift), newline is kept_newline),
        STRICTER,
    )


def _without(lines: list[bytes], at: int) -> list[bytes]:
    return lines[:at] + lines[at + 1 :]


def _twice(lines: list[bytes], at: int) -> list[bytes]:
    return lines[: at + 1] + lines[at:]


def _swapped(lines: list[bytes], at: int) -> list[bytes]:
    return lines[:at] + lines[at : at + 2][::-1] + lines[at + 2 :]


def _counted(lines: list[bytes], at: int) -> list[bytes]:
    digits = bytes.maketrans(b"123", b"234")
    return [*lines[:at], lines[at].translate(digits), *lines[at + 1 :]]


def _signed(lines: list[bytes], at: int) -> list[bytes]:
    signs = {b" ": b"-", b"-": b"+", b"+": b" "}
    line = lines[at]
    return [*lines[:at], signs.get(line[:1], b"") + line[1:], *lines[at + 1 :]]


@given(
    LINES,
    EDITS,
    st.integers(0, 3),
    st.sampled_from([_without, _twice, _swapped, _counted, _signed]),
    st.integers(0, 30),
    st.booleans(),
)
@FAST
def test_diffs_that_were_damaged(
    bench: Bench,
    lines: list[bytes],
    edits: list[tuple[int, int, list[bytes]]],
    context: int,
    damage: Callable[[list[bytes], int], list[bytes]],
    at: int,
    newline: bool,
) -> None:
    lines = numbered(lines)
    pre, post = joined(lines, newline), joined(edited(lines, edits), newline)
    assume(post and pre != post)
    diff = io.BytesIO(bench.diff("diff", pre, post, context)).readlines()
    compare(bench, b"".join(damage(diff, at % len(diff))), pre, STRICTER_READING)


def function(name: str) -> list[bytes]:
    body = [b"    a = 1\n", b"    b = 2\n", b"    c = 3\n", b"    d = 4\n", b"    e = 5\n"]
    return [b"def %s():\n" % name.encode(), *body, b"\n"]


def test_the_block_that_occurs_twice_is_where_we_are_stricter(bench: Bench) -> None:
    """Two functions alike change places: both others edit the wrong one, and say success."""
    one, two = function("one"), function("two")
    pre = b"".join(one + two)
    post = b"".join([*one[:3], b"    c = 33\n", *one[4:], *two])
    diff = bench.diff("git", pre, post, 1)
    swapped = b"".join(two + one)
    assert ours(diff, swapped) == {"ambiguous"}
    wrong = b"".join([*two[:3], b"    c = 33\n", *two[4:], *one])
    assert bench.applied("git", diff, swapped) == wrong
    assert bench.applied("patch", diff, swapped) == wrong


def test_a_diff_from_inside_a_repository_is_not_skipped(bench: Bench) -> None:
    """The bench is outside any repository: there git apply would exit 0 and do nothing."""
    diff = bench.diff("git", b"a\nb\n", b"a\nc\n", 3)
    assert bench.applied("git", diff, b"a\nb\n") == b"a\nc\n"
    assert bench.applied("git", diff, b"x\nb\n") is None
    assert bench.applied("patch", diff, b"x\nb\n") is None


def test_line_endings_and_the_last_newline_are_refused_by_all(bench: Bench) -> None:
    diff = bench.diff("git", b"a\nb\n", b"a\nc\n", 3)
    assert compare(bench, diff, b"a\r\nb\r\n", STRICTER) == {"crlf-mismatch"}
    assert compare(bench, diff, b"a\nb", STRICTER) == {"no-final-newline"}
    bare = bench.diff("git", b"a\nb", b"a\nc", 3)
    assert compare(bench, bare, b"a\nb\n", STRICTER) == {"no-final-newline"}
    assert compare(bench, bare, b"a\nb", STRICTER) == b"a\nc"
