"""Diffs: read as bytes, or refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixes.authoring import diffs
from fixes.authoring.diffs import FileDiff
from fixes.errors import ExitCode, FixesError
from fixes.hunks import Hunk

HEAD = "--- a/x.py\n+++ b/x.py\n"
GIT = "diff --git a/x.py b/x.py\nindex 1111111..2222222 100644\n"
BODY = "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
ADDED = "diff --git a/n.py b/n.py\nnew file mode 100644\nindex 0000000..2222222\n"
CHANGED = FileDiff("x.py", (Hunk(1, b"a\nb\nc\n", b"a\nB\nc\n"),), False)


def parse(text: str | bytes) -> tuple[FileDiff, ...]:
    return diffs.parse(text.encode() if isinstance(text, str) else text, "p.patch")


def refused(text: str | bytes) -> list[tuple[str, int]]:
    """The kinds of all problems, and their lines."""
    with pytest.raises(FixesError) as caught:
        parse(text)
    found = []
    for problem in caught.value.problems:
        name, _, line = problem.where.rpartition(":")
        assert (problem.code, name) == (ExitCode.MISMATCH, "p.patch")
        assert problem.what.isprintable()
        found.append((problem.kind, int(line)))
    return found


@pytest.mark.parametrize(
    "text",
    [
        HEAD + BODY,
        GIT + HEAD + BODY,
        "# why this is\n#\n# by whom\n" + GIT + HEAD + BODY,
        "--- a/x.py\t2026-01-01 00:00:00.0 +0000\n+++ b/x.py\t2026-01-01\n" + BODY,
        HEAD + BODY.replace("@@\n", "@@ def f(): # @@\n"),
        GIT.replace("100644", "100755") + HEAD + BODY,
    ],
)
def test_a_change(text: str) -> None:
    assert parse(text) == (CHANGED,)


def test_several_files_and_hunks() -> None:
    second = "@@ -9 +10 @@\n-x\n+y\n@@ -10,0 +12 @@\n+z\n"
    with pytest.raises(FixesError, match="no-old-lines"):
        parse(HEAD + BODY + second)
    text = HEAD + BODY + "@@ -9 +9 @@\n-x\n+y\n" + (GIT + HEAD + BODY).replace("x.py", "d/y z.py")
    first, other = parse(text)
    assert first.hunks == (*CHANGED.hunks, Hunk(9, b"x\n", b"y\n"))
    assert other == FileDiff("d/y z.py", CHANGED.hunks, False)


def test_an_added_file_is_one_hunk_without_old_lines() -> None:
    text = ADDED + "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    added = FileDiff("n.py", (Hunk(0, b"", b"a\nb\n"),), True)
    assert parse(text) == (added,)
    plain = text.removeprefix(ADDED)
    other = plain.replace("n.py", "m.py")
    assert parse(plain + other) == (added, FileDiff("m.py", added.hunks, True))
    assert parse(text + "\\ No newline at end of file\n")[0].hunks == (Hunk(0, b"", b"a\nb"),)


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        ("-a\n\\\n+b\n", b"a", b"b\n"),
        ("-a\n+b\n\\\n", b"a\n", b"b"),
        ("-a\n\\\n+b\n\\\n", b"a", b"b"),
        ("+b\n\\\n-a\n\\\n", b"a", b"b"),
        ("-a\n\\\n+a\n", b"a", b"a\n"),
    ],
)
def test_no_newline_at_either_end(body: str, old: bytes, new: bytes) -> None:
    text = HEAD + "@@ -1 +1 @@\n" + body.replace("\\\n", "\\ No newline at end of file\n")
    assert parse(text)[0].hunks == (Hunk(1, old, new),)


def test_no_newline_on_context() -> None:
    text = HEAD + "@@ -1,2 +1,2 @@\n-a\n+A\n b\n\\ No newline at end of file\n"
    assert parse(text)[0].hunks == (Hunk(1, b"a\nb", b"A\nb"),)


@pytest.mark.parametrize(
    "content",
    [
        "\r",
        "x\r",
        "\rx",
        "x\ry",
        "\x0c",
        "a\x0bb",
        "\x85",
        "a\u2028b\u2029",
        "\x1c\x1d\x1e",
        "\ufeff",
        "\t",
        " ",
        "-- a/x.py",
        "++ b/x.py",
        "@@ -1 +1 @@",
        "diff --git a/x b/x",
        "\\ No newline at end of file",
    ],
)
def test_only_a_newline_ends_a_line(content: str) -> None:
    text = f"{HEAD}@@ -1,2 +1,3 @@\n-{content}\n {content}\n+{content}\n+{content}\n"
    line = content.encode() + b"\n"
    assert parse(text)[0].hunks == (Hunk(1, line * 2, line * 3),)


def test_bytes_that_are_no_utf_8() -> None:
    text = HEAD.encode() + b"@@ -1 +1 @@\n-\xff\x00\xed\xa0\x80\n+\xe9\n"
    assert parse(text)[0].hunks == (Hunk(1, b"\xff\x00\xed\xa0\x80\n", b"\xe9\n"),)


def test_a_blank_context_line_may_lack_its_space() -> None:
    assert parse(HEAD + "@@ -1,2 +1,2 @@\n\n-a\n+b\n")[0].hunks == (Hunk(1, b"\na\n", b"\nb\n"),)


HUNK = HEAD + "@@ -1 +1 @@\n-a\n+b\n"
MARK = "\\ No newline at end of file\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # No diff.
        ("", [("empty", 1)]),
        ("\n \n", [("empty", 1)]),
        ("# only a comment\n", [("empty", 2)]),
        ("hello\nworld\n", [("not-a-diff", 1)]),
        ("@@ -1 +1 @@\n-a\n+b\n", [("not-a-diff", 1)]),
        ("--- a/x.py\n@@ -1 +1 @@\n-a\n+b\n", [("not-a-diff", 1)]),
        ("+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n", [("not-a-diff", 1)]),
        (
            "*** a/x.py\n--- b/x.py\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
            [("context-diff", 1)],
        ),
        (HUNK[:-1], [("truncated", 5)]),
        # Counts.
        (HEAD + "@@ -1,3 +1,3 @@\n a\n-b\n+B\n", [("hunk-count", 7)]),
        (HEAD + "@@ -1,3 +1,3 @@\n a\n-b\n+B\n" + GIT + HEAD + BODY, [("hunk-count", 7)]),
        (HEAD + "@@ -1,2 +1,1 @@\n a\n+b\n", [("hunk-count", 5)]),
        (HEAD + "@@ -1,1 +1,2 @@\n a\n-b\n", [("hunk-count", 5)]),
        (HEAD + BODY + " d\n", [("hunk-count", 8)]),
        (HEAD + BODY + "+d\n", [("hunk-count", 8)]),
        (HEAD + BODY + "-d\n@@ -9 +9 @@\n-x\n+y\n", [("hunk-count", 8)]),
        (HEAD + "@@ -1,2 +1,2 @@\n-a\n+b\n\rc\n", [("hunk-count", 6)]),
        (HEAD + "@@ -1,2 +1,2 @@\n-a\n+b\n\r\n", [("hunk-count", 6)]),
        (HEAD + "@@ -1 +1,2\n-a\n+b\n", [("hunk-header", 3)]),
        (HEAD + "@@ -\u0661 +1 @@\n-a\n+b\n", [("hunk-header", 3)]),
        (HEAD + "@@ -1 +1 @@x\n-a\n+b\n", [("hunk-header", 3)]),
        # Text elsewhere.
        ("From 1234 Mon Sep 17\n\n" + HUNK, [("stray-text", 1)]),
        ("@@ -1 +1 @@\n-a\n+b\n" + HUNK, [("stray-text", 1)]),
        ("\n" + HUNK, [("stray-text", 1)]),
        (HUNK + "\n", [("stray-text", 6)]),
        (HUNK + "# comment\n", [("stray-text", 6)]),
        (HUNK + "-- \n2.39.5\n\n", [("stray-text", 6)]),
        (HUNK + "text\n@@ -9 +9 @@\n-x\n+y\n", [("stray-text", 6)]),
        (HEAD + "text\n@@ -9 +9 @@\n-x\n+y\n", [("stray-text", 3)]),
        (HUNK + "diff -u x y\n" + HUNK.replace("x.py", "y.py"), [("stray-text", 6)]),
        (GIT + "text\n" + HUNK, [("stray-text", 3)]),
        (GIT + "@@ -1 +1 @@\n-a\n+b\n", [("stray-text", 3)]),
        # Headers alone.
        (HEAD, [("no-hunks", 1)]),
        (GIT, [("no-hunks", 1)]),
        (GIT + HEAD + (GIT + HUNK).replace("x.py", "y.py"), [("no-hunks", 1)]),
        (ADDED, [("no-hunks", 1)]),
        # What is not supported.
        (GIT + "Binary files a/x.py and b/x.py differ\n", [("binary", 3)]),
        (GIT + "GIT binary patch\nliteral 5\nMcmXqR\n\nliteral 0\nHcmV?d\n\n", [("binary", 3)]),
        ("diff --git a/x.py b/x.py\nold mode 100644\nnew mode 100755\n", [("mode", 2)]),
        ("diff --git a/x.py b/x.py\nold mode 100755\nnew mode 100644\n" + HUNK, [("mode", 2)]),
        (
            ADDED.replace("100644", "100755") + "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+a\n",
            [("mode", 2), ("path-mismatch", 4)],
        ),
        (
            ADDED.replace("100644", "120000") + "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+a\n",
            [("symlink", 2), ("path-mismatch", 4)],
        ),
        (GIT.replace("100644", "120000") + HUNK, [("symlink", 2)]),
        (GIT.replace("100644", "160000") + HUNK, [("submodule", 2)]),
        ("diff --git a/x.py b/x.py\nold mode 100644\nnew mode 120000\n" + HUNK,
         [("mode", 2), ("symlink", 3)]),
        (
            "diff --git a/x.py b/y.py\nsimilarity index 100%\nrename from x.py\nrename to y.py\n",
            [("rename", 3)],
        ),
        (
            "diff --git a/x.py b/y.py\nsimilarity index 90%\ncopy from x.py\ncopy to y.py\n"
            + HUNK.replace("b/x.py", "b/y.py"),
            [("copy", 3), ("path-mismatch", 5)],
        ),
        (
            "diff --git a/x.py b/x.py\ndeleted file mode 100644\nindex 1..0\n"
            "--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
            [("deletion", 2), ("deletion", 5), ("no-new-lines", 6)],
        ),
        ("--- a/x.py\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", [("deletion", 2)]),
        # Names.
        (HUNK * 2, [("duplicate-file", 6)]),
        (GIT + HUNK + GIT + HUNK, [("duplicate-file", 8)]),
        (HUNK.replace("a/x.py", "x.py"), [("prefix", 1)]),
        (HUNK.replace("b/x.py", "x.py"), [("prefix", 2)]),
        (HUNK.replace("a/", "").replace("b/", ""), [("prefix", 1), ("prefix", 2)]),
        (HUNK.replace("b/x.py", "a/x.py"), [("prefix", 2)]),
        (HUNK.replace("a/x.py", "/etc/x.py"), [("path", 1)]),
        (HUNK.replace("x.py", "/x.py"), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py", "../x.py"), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py", "d/../x.py"), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py", "./x.py"), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py", "d//x.py"), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py", "d/"), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py", ""), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py", "x\0.py"), [("path", 1), ("path", 2)]),
        (HUNK.replace("x.py\n", "x.py\r\n"), [("path", 1), ("path", 2)]),
        (HUNK.replace("b/x.py", '"b/x\\303.py"'), [("path", 2)]),
        (HUNK.replace("x.py", "d\\x.py"), [("path", 1), ("path", 2)]),
        (HUNK.encode().replace(b"x.py", b"x\xff.py"), [("path", 1), ("path", 2)]),
        (HUNK.replace("b/x.py", "b/y.py"), [("path-mismatch", 1)]),
        (GIT.replace("x.py", "y.py") + HUNK, [("path-mismatch", 3)]),
        (ADDED.replace("n.py", "x.py") + HUNK, [("path-mismatch", 4)]),
        (
            "diff --git a/n.py b/n.py\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+a\n",
            [("path-mismatch", 2)],
        ),
        # Places.
        (HEAD + "@@ -1,0 +2 @@\n+a\n", [("no-old-lines", 3)]),
        (HEAD + "@@ -0,0 +1 @@\n+a\n", [("no-old-lines", 3)]),
        (HEAD + "@@ -1 +0,0 @@\n-a\n", [("no-new-lines", 3)]),
        (HEAD + "@@ -1,0 +1,0 @@\n", [("no-old-lines", 3), ("no-new-lines", 3)]),
        (HEAD + "@@ -1 +1 @@\n a\n", [("no-change", 3)]),
        (HEAD + "@@ -1,2 +1,2 @@\n-a\n b\n+a\n".replace(" b", " a"), [("no-change", 3)]),
        (HEAD + BODY + BODY, [("hunk-order", 8)]),
        (HEAD + BODY + "@@ -3 +3 @@\n-c\n+d\n", [("hunk-order", 8)]),
        (HEAD + "@@ -9 +9 @@\n-x\n+y\n" + BODY, [("hunk-order", 6)]),
        (HEAD + "@@ -0 +0 @@\n-x\n+y\n", [("hunk-order", 3)]),
        ("--- /dev/null\n+++ b/n.py\n@@ -1 +1 @@\n-a\n+b\n", [("hunk-header", 3)]),
        (
            "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+a\n@@ -0,0 +2 @@\n+b\n",
            [("hunk-header", 5)],
        ),
        # Marks of a missing newline.
        (HEAD + "@@ -1 +1 @@\n" + MARK + "-a\n+b\n", [("no-newline-marker", 4)]),
        (HEAD + "@@ -1,2 +1 @@\n-a\n" + MARK + "-b\n+c\n", [("no-newline-marker", 5)]),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n" + MARK * 2, [("no-newline-marker", 7)]),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n\\ Something\n", [("no-newline-marker", 6)]),
        (
            HUNK + MARK + "@@ -9 +9 @@\n-x\n+y\n",
            [("no-newline-marker", 7)],
        ),
        # All at once.
        (
            HUNK.replace("x.py", "../x.py")
            + "oops\n"
            + GIT
            + HUNK
            + "@@ -1 +1 @@\n-x\n+y\n"
            + HEAD.replace("x", "y")
            + "@@ -1 +1 @@\n a\n",
            [("no-change", 19), ("path", 1), ("path", 2), ("stray-text", 6), ("hunk-order", 14)],
        ),
    ],
)  # fmt: skip
def test_refused_by_name(text: str | bytes, found: list[tuple[str, int]]) -> None:
    assert sorted(refused(text), key=lambda item: item[1]) == sorted(
        found, key=lambda item: item[1]
    )


def test_what_unidiff_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise diffs.errors.UnidiffParseError("no way")

    monkeypatch.setattr(diffs.patch, "PatchSet", fail)
    assert refused(HUNK) == [("unparsable", 1)]
    monkeypatch.setattr(diffs.patch, "PatchSet", lambda _: [[]])
    assert refused(HUNK) == [("unparsable", 1)]


def test_any_line_left_out_or_doubled_is_noticed() -> None:
    """Every line of a diff counts: none can go or come twice without being noticed."""
    text = GIT + HEAD + BODY + "@@ -9,2 +9,2 @@\n-x\n+y\n z\n"
    whole = parse(text)
    lines = text.splitlines(keepends=True)
    for at in range(2, len(lines)):
        for other in (lines[:at] + lines[at + 1 :], [*lines[: at + 1], *lines[at:]]):
            with pytest.raises(FixesError):
                assert parse("".join(other)) != whole


@pytest.mark.parametrize("patch", sorted(Path(__file__).parents[1].glob("patches/*/*.patch")))
def test_reads_our_own_as_git_does(patch: Path) -> None:
    files = diffs.parse(patch.read_bytes(), patch.name)
    out = subprocess.run(
        ["git", "apply", "--numstat", patch], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    assert [line.split("\t")[2] for line in out.splitlines()] == [file.path for file in files]
    for line, file in zip(out.splitlines(), files, strict=True):
        added, removed = map(int, line.split("\t")[:2])
        grown = sum(hunk.new.count(b"\n") - hunk.old.count(b"\n") for hunk in file.hunks)
        assert grown == added - removed
