"""Bytecode: a fresh interpreter runs the new source, whatever was cached before."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import py_compile
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode as Mode

import pytest

from fixes import bytecode, disk
from fixes.errors import ExitCode, FixesError
from fixes.transaction import Change, Roots, Transaction, fresh_mtime

OLD = b"import sys\nVALUE = 1\nASSERTS = 0\nassert [ASSERTS := 1]\n"
NEW = b"import sys\nVALUE = 2\nASSERTS = 0\nassert [ASSERTS := 1]\n"
TAG = sys.implementation.cache_tag
LEVELS = {0: [], 1: ["-O"], 2: ["-OO"]}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages with one package, its dist-info, and one module ``pkg.m``."""
    site = tmp_path / "site"
    (site / "pkg").mkdir(parents=True)
    (site / "pkg-1.dist-info").mkdir()
    (site / "pkg" / "__init__.py").write_bytes(b"")
    (site / "pkg" / "m.py").write_bytes(OLD)
    return site


def value(site: Path, *options: str, prefix: Path | None = None, writing: bool = False) -> int:
    """``pkg.m.VALUE`` as a fresh interpreter has it. Its code must say where it is from."""
    environment = {"PYTHONPATH": str(site)}
    if prefix:
        environment["PYTHONPYCACHEPREFIX"] = str(prefix)
    if not writing:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    code = (
        "from pkg import m\n"
        "import sys\n"
        "code = m.__loader__.get_code('pkg.m')\n"
        "assert m.ASSERTS == (not sys.flags.optimize)\n"
        "print(m.VALUE, code.co_filename)"
    )
    found = subprocess.run(
        [sys.executable, "-S", *options, "-c", code],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    number, filename = found.stdout.split(maxsplit=1)
    assert filename.strip() == str(site / "pkg" / "m.py")
    return int(number)


def apply(site: Path, content: bytes | None = NEW, prefix: Path | None = None) -> list[Change]:
    """Replace ``pkg.m`` as an apply does; returns the changes of its bytecode."""
    source = site / "pkg" / "m.py"
    mtime = fresh_mtime(source)
    expect = hashlib.sha256(source.read_bytes()).hexdigest()
    cached = bytecode.compiled(source, content, mtime, str(prefix) if prefix else None)
    changes = [Change(source, expect, content, mtime), *cached]
    home = site / "pkg-1.dist-info"
    roots = Roots.of(home, bytecode.roots(site / "pkg", str(prefix) if prefix else None))
    with Transaction(home, changes, roots) as transaction:
        transaction.commit()
        transaction.finish()
    return cached


def compile_old(site: Path, mode: Mode, level: int = 0, cfile: Path | None = None) -> Path:
    source = str(site / "pkg" / "m.py")
    made = py_compile.compile(
        source, str(cfile) if cfile else None, doraise=True, optimize=level, invalidation_mode=mode
    )
    return Path(made)


def rewrite_in_the_same_second(site: Path) -> None:
    """What an editor, sed or patch does: the file's mtime differs by nanoseconds only."""
    source = site / "pkg" / "m.py"
    second = source.stat().st_mtime_ns // 10**9 * 10**9
    source.write_bytes(NEW)
    os.utime(source, ns=(second + 999, second + 999))


@pytest.mark.parametrize("mode", [Mode.TIMESTAMP, Mode.UNCHECKED_HASH])
def test_the_fault_is_there_without_care(site: Path, mode: Mode) -> None:
    compile_old(site, mode)
    rewrite_in_the_same_second(site)
    assert value(site) == 1  # old code under new source
    assert (site / "pkg" / "m.py").read_bytes() == NEW


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", Mode)
def test_the_new_code_runs_whatever_was_cached(site: Path, mode: Mode, level: int) -> None:
    pyc = compile_old(site, mode, level)
    assert value(site, *LEVELS[level]) == 1
    apply(site)
    assert pyc.exists() == (mode is not Mode.UNCHECKED_HASH)
    assert value(site, *LEVELS[level]) == 2
    apply(site, OLD)
    assert value(site, *LEVELS[level]) == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", [Mode.TIMESTAMP, Mode.CHECKED_HASH])
def test_what_is_made_anew_is_taken_for_current(site: Path, mode: Mode, level: int) -> None:
    pyc = compile_old(site, mode, level)
    old = pyc.read_bytes()
    apply(site)
    now = pyc.stat()
    content = pyc.read_bytes()
    assert content[:8] == old[:8]
    # What the standard library itself would write for this source.
    compile_old(site, mode, level, cfile=site.parent / "own.pyc")
    own = (site.parent / "own.pyc").read_bytes()
    assert content[:16] == own[:16]
    assert marshal.loads(content[16:]) == marshal.loads(own[16:])
    # An interpreter that may write does not find it stale.
    assert value(site, *LEVELS[level], writing=True) == 2
    assert (pyc.stat().st_ino, pyc.stat().st_mtime_ns) == (now.st_ino, now.st_mtime_ns)


def test_the_cached_code_is_the_new_source_not_a_forgery(site: Path) -> None:
    """Proof that the test above looks at the cache: a changed cache changes the value."""
    pyc = compile_old(site, Mode.TIMESTAMP)
    apply(site)
    code = compile(NEW.replace(b"2", b"7"), str(site / "pkg" / "m.py"), "exec")
    pyc.write_bytes(pyc.read_bytes()[:16] + marshal.dumps(code))
    assert value(site) == 7


def test_every_tag_and_level_is_found_and_others_are_left_alone(site: Path) -> None:
    cache = site / "pkg" / "__pycache__"
    ours = {compile_old(site, Mode.TIMESTAMP, level) for level in LEVELS}
    for name in ("m.cpython-39.pyc", "m.pypy310.opt-1.pyc", f"m.{TAG}-pytest-8.3.4.pyc"):
        (cache / name).write_bytes(b"other")
        ours.add(cache / name)
    others = {cache / "mm.cpython-39.pyc", cache / f"m.{TAG}.pyc.140", cache / "m.txt"}
    for path in others:
        path.write_bytes(b"not of this module")
    assert set(bytecode.stale(site / "pkg" / "m.py", None)) == ours
    apply(site)
    assert set(cache.iterdir()) == others | {cache / f"m.{TAG}{end}" for end in ENDS}


ENDS = (".pyc", ".opt-1.pyc", ".opt-2.pyc")


def test_bytecode_of_another_magic_number_is_removed(site: Path) -> None:
    pyc = compile_old(site, Mode.CHECKED_HASH)
    pyc.write_bytes(b"\0\0\r\n" + pyc.read_bytes()[4:])
    [change] = apply(site)
    assert change.content is None
    assert not pyc.parent.exists()  # nor is the empty folder left


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0" * 11])
def test_torn_bytecode_is_removed(site: Path, rest: bytes) -> None:
    pyc = compile_old(site, Mode.TIMESTAMP)
    pyc.write_bytes(importlib.util.MAGIC_NUMBER + rest)
    apply(site)
    assert not pyc.exists()
    assert value(site) == 2


def test_no_bytecode_is_made_where_there_was_none(site: Path) -> None:
    assert apply(site) == []
    assert not (site / "pkg" / "__pycache__").exists()


def test_bytecode_of_a_removed_module_goes_with_it(site: Path) -> None:
    for level in LEVELS:
        compile_old(site, Mode.UNCHECKED_HASH, level)
    apply(site, None)
    assert [path.name for path in (site / "pkg").iterdir()] == ["__init__.py"]


@pytest.mark.parametrize("given", [True, False], ids=["target's prefix", "own prefix"])
def test_bytecode_under_a_prefix(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    prefix = tmp_path / "prefix"
    assert value(site, prefix=prefix, writing=True) == 1
    [pyc] = prefix.rglob("m.*.pyc")
    if not given:
        monkeypatch.setattr(sys, "pycache_prefix", str(prefix))
    before = pyc.read_bytes()
    [change] = apply(site, prefix=prefix if given else None)
    assert change.path == pyc
    assert pyc.read_bytes() != before
    assert value(site, prefix=prefix) == 2


def test_bytecode_under_a_prefix_of_a_linked_folder(site: Path, tmp_path: Path) -> None:
    """Cached under the name by which it was imported; found from either side."""
    prefix = tmp_path / "prefix"
    assert value(site, prefix=prefix, writing=True) == 1
    link = tmp_path / "link"
    link.symlink_to(site)
    assert value(link, prefix=prefix, writing=True) == 1
    found = bytecode.stale(link / "pkg" / "m.py", str(prefix))
    assert set(found) == set(prefix.rglob("m.*.pyc"))
    assert len(found) == 2


def test_a_source_for_another_python_is_not_compiled_here(site: Path) -> None:
    pyc = compile_old(site, Mode.CHECKED_HASH)
    apply(site, b"VALUE = (this is of Python 4)\n")
    assert not pyc.exists()


def test_warnings_of_the_source_are_not_ours(site: Path) -> None:
    compile_old(site, Mode.CHECKED_HASH)
    apply(site, b"ASSERTS = 1\nVALUE = 2 if '\\d' is '\\d' else 2\n")


def test_only_sources_have_bytecode(site: Path) -> None:
    (site / "pkg" / "__pycache__").mkdir()
    (site / "pkg" / "__pycache__" / "RECORD.x.pyc").write_bytes(b"")
    assert bytecode.stale(site / "pkg" / "RECORD", None) == []
    assert bytecode.compiled(site / "pkg" / "RECORD", b"", 0, None) == []


def test_a_cache_that_cannot_be_read_is_named(site: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become someone else")
    pyc = compile_old(site, Mode.TIMESTAMP)
    pyc.parent.chmod(0o700)
    for folder in pyc.parents[1:-2]:
        folder.chmod(0o755)
    child = os.fork()
    if not child:
        try:
            os.setuid(65534)
            with pytest.raises(FixesError) as caught:
                bytecode.stale(site / "pkg" / "m.py", None)
            [problem] = caught.value.problems
            assert (problem.code, problem.kind) == (ExitCode.CANNOT_WRITE, "permission")
            assert problem.where == str(pyc.parent)
            os._exit(0)
        except BaseException as error:
            print("in the child:", repr(error), file=sys.__stderr__, flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def no_bytecode(path: Path, what: str) -> None:
    """Put what is no bytecode in the place of one."""
    path.unlink()
    if what == "broken link":
        path.symlink_to("nowhere")
    elif what == "circle":
        path.symlink_to(path.name)
    elif what == "FIFO":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif what == "too large":
        path.touch()
        os.truncate(path, disk.LARGEST + 1)
    else:
        path.mkdir()


@pytest.mark.parametrize("what", ["broken link", "circle", "FIFO", "socket", "too large"])
def test_what_is_no_bytecode_is_removed(what: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path is a short one
        site = Path(short, "s")
        (site / "pkg").mkdir(parents=True)
        (site / "pkg-1.dist-info").mkdir()
        (site / "pkg" / "__init__.py").touch()
        (site / "pkg" / "m.py").write_bytes(OLD)
        pyc = compile_old(site, Mode.TIMESTAMP)
        no_bytecode(pyc, what)
        before = pyc.lstat()
        with (
            pytest.raises(ZeroDivisionError),
            Transaction(
                site / "pkg-1.dist-info", [*bytecode.compiled(site / "pkg" / "m.py", NEW, 0, None)]
            ) as transaction,
        ):
            transaction.commit()
            assert not os.path.lexists(pyc)
            raise ZeroDivisionError
        assert os.path.samestat(before, pyc.lstat())
        apply(site)
        assert not os.path.lexists(pyc)
        assert value(site) == 2


def test_a_folder_named_like_bytecode_is_left_alone(site: Path) -> None:
    pyc = compile_old(site, Mode.TIMESTAMP)
    no_bytecode(pyc, "folder")
    (pyc / "theirs").touch()
    apply(site)
    assert (pyc / "theirs").exists()
    assert value(site) == 2


def test_a_cache_that_is_a_link_is_not_touched(site: Path, tmp_path: Path) -> None:
    pyc = compile_old(site, Mode.TIMESTAMP)
    elsewhere = pyc.parent.rename(tmp_path / "elsewhere")
    pyc.parent.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    assert apply(site) == []
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before
    assert value(site) == 2


def test_a_prefix_from_which_a_link_leads_out_is_not_touched(site: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    assert value(site, prefix=prefix, writing=True) == 1
    [pyc] = prefix.rglob("m.*.pyc")
    (site / "pkg" / "sub").mkdir()
    (site / "pkg" / "sub" / "n.py").write_bytes(OLD)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    theirs = elsewhere / f"n.{TAG}.pyc"
    theirs.write_bytes(pyc.read_bytes())
    (pyc.parent / "sub").symlink_to(elsewhere)
    changes = bytecode.compiled(site / "pkg" / "sub" / "n.py", NEW, 0, str(prefix))
    assert changes
    home = site / "pkg-1.dist-info"
    roots = Roots.of(home, bytecode.roots(site / "pkg", str(prefix)))
    with Transaction(home, changes, roots) as transaction:
        transaction.commit()
        transaction.finish()
    assert theirs.read_bytes() == pyc.read_bytes()


def test_bytecode_comes_back_with_its_source(site: Path) -> None:
    """A rolled back apply: the old cache is current again, though new code ran meanwhile."""
    source = site / "pkg" / "m.py"
    pyc = compile_old(site, Mode.TIMESTAMP)
    before = (source.stat().st_mtime_ns, pyc.stat().st_ino, pyc.read_bytes())
    mtime = fresh_mtime(source)
    changes = [
        Change(source, hashlib.sha256(OLD).hexdigest(), NEW, mtime),
        *bytecode.compiled(source, NEW, mtime, None),
    ]
    with Transaction(site / "pkg-1.dist-info", changes) as transaction:
        transaction.commit()
        assert value(site) == 2
        pyc.unlink()
        assert value(site, writing=True) == 2
        pyc.touch()
    assert (source.stat().st_mtime_ns, pyc.stat().st_ino, pyc.read_bytes()) == before
    assert value(site) == 1


def test_a_real_module_of_the_library(tmp_path: Path) -> None:
    """Many functions and constants, not a toy: the pickle module, with one line more."""
    import pickle

    site = tmp_path / "site"
    (site / "pkg").mkdir(parents=True)
    (site / "pkg-1.dist-info").mkdir()
    (site / "pkg" / "__init__.py").touch()
    old = Path(pickle.__file__).read_bytes()
    (site / "pkg" / "m.py").write_bytes(old)
    pyc = compile_old(site, Mode.TIMESTAMP)
    apply(site, old + b"\nVALUE, ASSERTS = 2, __debug__\n")
    assert value(site) == 2
    assert marshal.loads(pyc.read_bytes()[16:]).co_filename == str(site / "pkg" / "m.py")
