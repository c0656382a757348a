"""Transactions against real faults: kills, signals, full, read-only and foreign disks.

Most tests fork a child that carries out one transaction and is struck before its n-th write to
the disk, for every n: an audit hook counts what Python does to files, and ``os.write`` (torn in
the middle) and ``os.fsync``, which have no audit event, are wrapped.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fixes import bytecode, disk, journal, transaction
from fixes.errors import ExitCode, FixesError, Problem
from fixes.transaction import Change, Roots, Transaction, fresh_mtime, pending, recover, unclaimed

WRITES = {
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.setxattr",
    "os.symlink",
    "os.utime",
}
#: Two real modules, as they are in this interpreter's library.
BEFORE = {
    name: Path(os.__file__).with_name(f"{name}.py").read_bytes() for name in ("colorsys", "stat")
}
AFTER = {name: content + b"\nFIXED = True\n" for name, content in BEFORE.items()}
PYC = f"core.{sys.implementation.cache_tag}.pyc"
BY_HANDLER = 3

Strike = Callable[[], object]


@pytest.fixture
def area() -> Iterator[Path]:
    """A folder that all users may enter, on a filesystem with a cheap fsync if there is one."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shm if os.access(shm, os.W_OK) else None))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Site:
    """A small site-packages: hard links and symlinks into a cache, bytecode, a dist-info."""

    def __init__(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        self.root = root
        self.site = root / "site"
        self.package = self.site / "pkg"
        self.home = self.site / "pkg-1.dist-info"
        self.cache = root / "cache"
        for folder in (self.package / "__pycache__", self.package / "alone", self.home):
            folder.mkdir(parents=True)
        self.cache.mkdir()
        for name in ("core", "linked"):
            self.write(self.cache / f"{name}.py", BEFORE["colorsys"])
        (self.package / "core.py").hardlink_to(self.cache / "core.py")
        (self.package / "linked.py").symlink_to(self.cache / "linked.py")
        for path, content in (
            (self.package / "__init__.py", b""),
            (self.package / "plain.py", BEFORE["stat"]),
            (self.package / "gone.py", BEFORE["stat"]),
            (self.package / "alone" / "only.py", BEFORE["stat"]),
            (self.package / "__pycache__" / PYC, b"current bytecode"),
            (self.package / "__pycache__" / "core.cpython-39.pyc", b"old bytecode"),
            (self.home / "RECORD", b"pkg/core.py,,\r\n"),
        ):
            self.write(path, content)
        self.state = self.home / "fixes-applied.json"

    @staticmethod
    def write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o640)
        os.utime(path, ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))

    def changes(self, kinds: str) -> list[Change]:
        core, linked = self.package / "core.py", self.package / "linked.py"
        plain, bytecode = self.package / "plain.py", self.package / "__pycache__"
        modify = [
            Change(core, sha256(BEFORE["colorsys"]), AFTER["colorsys"]),
            Change(linked, sha256(BEFORE["colorsys"]), AFTER["colorsys"]),
            Change(plain, sha256(BEFORE["stat"]), AFTER["stat"], 1_800_000_000_000_000_000),
            Change(bytecode / PYC, None, b"new bytecode", cache=True),
        ]
        add = [
            Change(self.package / "added.py", None, b"ADDED = 1\n"),
            Change(self.package / "deep" / "er" / "added.py", None, b"ADDED = 2\n"),
        ]
        remove = [
            Change(self.package / "gone.py", sha256(BEFORE["stat"]), None),
            Change(self.package / "alone" / "only.py", sha256(BEFORE["stat"]), None),
            Change(bytecode / "core.cpython-39.pyc", None, None, cache=True),
        ]
        always = [
            Change(
                self.home / "RECORD", sha256(b"pkg/core.py,,\r\n"), b"pkg/core.py,sha256=x,\r\n"
            ),
            Change(self.state, None, b"planned"),
        ]
        chosen = {"modify": modify, "add": add, "remove": remove}.get(kinds)
        return (modify + add + remove if chosen is None else chosen) + always

    def apply(self, kinds: str = "all") -> None:
        with Transaction(self.home, self.changes(kinds)) as transaction:
            transaction.commit()
            transaction.amend(self.state, b"verified")
            transaction.finish()


def snapshot(root: Path, *, identity: bool = True) -> dict[str, tuple[object, ...]]:
    """Every name under ``root`` with type, mode and bytes; and inode, links and mtime."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        now = path.lstat()
        content: object = None
        if stat.S_ISLNK(now.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(now.st_mode):
            content = path.read_bytes()
        same: tuple[object, ...] = (now.st_mode, now.st_uid, now.st_gid, content)
        if identity and not stat.S_ISDIR(now.st_mode):
            same = (*same, now.st_ino, now.st_nlink, now.st_mtime_ns)
        found[str(path.relative_to(root))] = same
    return found


def forked(work: Callable[[], None], at: int, strike: Strike, again: bool = False) -> int:
    """Do ``work`` in a child that is struck before its ``at``-th write (and ``again`` ever after).

    Returns the wait status: 0 if it was done before that, BY_HANDLER << 8 if it was unwound.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        counter = itertools.count(1)
        active = True

        def count() -> bool:
            number = next(counter) if active else 0
            return number == at or (again and number > at)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event in WRITES
            if event == "open" and isinstance(arguments[2], int):
                writes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if writes and count():
                strike()

        def write(descriptor: int, content: Any, real: Any = os.write) -> Any:
            if count():
                real(descriptor, content[: len(content) // 2])
                strike()
            return real(descriptor, content)

        def fsync(descriptor: int, real: Any = os.fsync) -> None:
            if count():
                strike()
            real(descriptor)

        os.write, os.fsync = write, fsync  # type: ignore[assignment]
        sys.addaudithook(hook)
        work()
        active = False
        os._exit(0)
    except Unwound:
        os._exit(BY_HANDLER)
    except BaseException as error:
        print("in the child:", repr(error), file=sys.__stderr__, flush=True)
        os._exit(1)


class Unwound(BaseException):
    """What a signal handler raises."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def expected(area: Path, kinds: str) -> dict[str, tuple[object, ...]]:
    """What the tree is after the transaction, by what was asked for, not by running it."""
    site = Site(area)
    for change in site.changes(kinds):
        if change.content is None:
            change.path.unlink()
        else:
            mode = 0o640 if os.path.lexists(change.path) else 0o644
            change.path.unlink(missing_ok=True)
            change.path.parent.mkdir(parents=True, exist_ok=True)
            change.path.write_bytes(change.content)
            change.path.chmod(mode)
    site.state.write_bytes(b"verified")
    if kinds in ("remove", "all"):
        (site.package / "alone").rmdir()
    return snapshot(area, identity=False)


def settled(site: Site, before: dict[str, tuple[object, ...]], after: object) -> str:
    """Whether the tree is all old (the very same files) or all new; anything else fails."""
    assert not pending(site.home)
    now = snapshot(site.root)
    if now == before:
        return "old"
    assert snapshot(site.root, identity=False) == after
    assert (site.cache / "core.py").stat().st_nlink == now_links(site)
    return "new"


def now_links(site: Site) -> int:
    core = site.package / "core.py"
    return 2 if core.samefile(site.cache / "core.py") else 1


KINDS = ("modify", "add", "remove", "all")


@pytest.mark.parametrize("kinds", KINDS)
def test_a_whole_run_changes_everything_and_leaves_nothing(area: Path, kinds: str) -> None:
    after = expected(area / "x", kinds)
    site = Site(area / "x")
    before = snapshot(site.root)
    site.apply(kinds)
    assert settled(site, before, after) == "new"
    assert (site.cache / "core.py").read_bytes() == BEFORE["colorsys"]
    assert (site.cache / "linked.py").read_bytes() == BEFORE["colorsys"]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_kill_at_any_write_is_recovered(area: Path, kinds: str) -> None:
    after = expected(area / "x", kinds)
    outcomes = []
    for number in itertools.count(1):
        site = Site(area / "x")
        before = snapshot(site.root)
        status = forked(lambda: site.apply(kinds), number, kill)  # noqa: B023
        if status == 0:
            break
        assert status == signal.SIGKILL
        recovered = recover(site.home)
        outcomes.append(settled(site, before, after))
        assert not recovered.rolled_back or outcomes[-1] == "old"
    assert number > 40
    assert outcomes == sorted(outcomes, reverse=True)  # one commit point
    assert {"old", "new"} == set(outcomes)


def test_a_kill_at_any_write_is_recovered_where_links_are_refused(
    area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, name: Path, real: Any = os.link, **options: bool) -> None:
        if name.suffix == ".old":
            raise PermissionError(errno.EPERM, "no links here")
        real(source, name, **options)

    monkeypatch.setattr(os, "link", refuse)
    after = expected(area / "x", "all")
    for number in itertools.count(1):
        site = Site(area / "x")
        before = snapshot(site.root, identity=False)
        times = {path: path.lstat().st_mtime_ns for path in site.site.rglob("*.py")}
        status = forked(site.apply, number, kill)
        if status == 0:
            break
        assert status == signal.SIGKILL
        recover(site.home)
        now = snapshot(site.root, identity=False)
        assert now in (before, after)
        if now == before:
            del times[site.package / "linked.py"]
            assert times == {path: path.lstat().st_mtime_ns for path in times}
    assert number > 80


@pytest.mark.parametrize("kinds", ["modify", "add", "remove"])
def test_a_kill_of_the_recovery_is_recovered(area: Path, kinds: str) -> None:
    after = expected(area / "x", kinds)
    for number in itertools.count(1, 4):
        for second in itertools.count(1):
            site = Site(area / "x")
            before = snapshot(site.root)
            first = forked(lambda: site.apply(kinds), number, kill)  # noqa: B023
            status = forked(lambda: recover(site.home) and None, second, kill)  # noqa: B023
            recover(site.home)
            settled(site, before, after)
            if status == 0:
                break
            assert status == signal.SIGKILL
        if first == 0:
            break


def unwinding(work: Callable[[], None]) -> Callable[[], None]:
    def handler(number: int, frame: types.FrameType | None) -> NoReturn:
        raise Unwound

    def handled() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, handler)
        work()

    return handled


@pytest.mark.parametrize("again", [False, True], ids=["once", "again-and-again"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_any_write_is_rolled_back_at_once(
    area: Path, number: signal.Signals, again: bool
) -> None:
    after = expected(area / "x", "all")
    outcomes = []
    for at in itertools.count(1, 2 if number == signal.SIGTERM else 7):
        site = Site(area / "x")
        before = snapshot(site.root)
        status = forked(unwinding(site.apply), at, lambda: os.kill(os.getpid(), number), again)
        outcomes.append(settled(site, before, after))
        if status == 0:
            break
        assert os.waitstatus_to_exitcode(status) == BY_HANDLER
    assert outcomes == sorted(outcomes, reverse=True)
    assert outcomes[0] == "old"


def struck_at_line(number: int, work: Callable[[], None]) -> None:
    """Do ``work``, with a SIGTERM at the ``number``-th line of the package that is run."""
    lines = itertools.count(1)
    package = str(Path(journal.__file__).parent)

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(package):
            return None
        if event == "line" and next(lines) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)


def test_a_signal_at_any_line_is_rolled_back(area: Path) -> None:
    after = expected(area / "x", "modify")
    for number in itertools.count(1, 7):
        site = Site(area / "x")
        before = snapshot(site.root)

        def work(site: Site = site, number: int = number) -> None:
            struck_at_line(number, lambda: site.apply("modify"))

        status = forked(unwinding(work), 0, kill)
        settled(site, before, after)
        if status == 0:
            break
        assert os.waitstatus_to_exitcode(status) == BY_HANDLER
    assert number > 600


def test_a_signal_at_any_line_of_the_rollback_does_not_stop_it(area: Path) -> None:
    """But for the few lines before signals are held back; then the next run rolls back."""
    late = 0
    for number in itertools.count(1, 3):
        site = Site(area / "x")
        before = snapshot(site.root)

        def work(site: Site = site, number: int = number) -> None:
            transaction = Transaction(site.home, site.changes("modify")).__enter__()
            transaction.commit()
            struck_at_line(number, lambda: transaction.__exit__(None, None, None))

        status = forked(unwinding(work), 0, kill)
        if pending(site.home):
            late += 1
            recover(site.home)
        assert snapshot(site.root) == before
        if status == 0:
            break
        assert os.waitstatus_to_exitcode(status) == BY_HANDLER
    assert number > 100
    assert late <= 4


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EIO, "io-error"),
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
    ],
)
def test_an_error_at_any_write_changes_nothing(area: Path, number: int, kind: str) -> None:
    def fail() -> NoReturn:
        raise OSError(number, os.strerror(number))

    after = expected(area / "x", "all")
    outcomes = []
    for at in itertools.count(1, 1 if number == errno.EIO else 7):
        site = Site(area / "x")
        before = snapshot(site.root)
        said = site.root / "said"

        def work(site: Site = site, said: Path = said) -> None:
            try:
                site.apply()
            except FixesError as error:
                [problem] = error.problems
                said.symlink_to(f"{problem.code.name} {problem.kind} {problem.where}")
                raise Unwound from None

        status = forked(work, at, fail)
        if os.path.lexists(said):
            code, found, where = str(said.readlink()).split(" ", 2)
            said.unlink()
            assert (found, status) == (kind, BY_HANDLER << 8)
            assert Path(where).is_relative_to(site.site)
            if code == "UNRECOVERABLE":  # dropping leftovers failed: it was final already
                recover(site.home)
                assert settled(site, before, after) == "new"
            else:
                assert code == "CANNOT_WRITE"
                assert settled(site, before, after) == "old"
            outcomes.append(code)
        else:
            assert status == 0
            alone = site.package / "alone"
            if alone.exists():  # an emptied folder is no reason to call a final change failed
                alone.rmdir()
            if settled(site, before, after) == "new" and at > 150:
                break
    assert outcomes[0] == "CANNOT_WRITE"
    assert outcomes.count("CANNOT_WRITE") > 10


def test_a_disk_that_stays_broken_is_rolled_back_by_the_next_run(area: Path) -> None:
    def fail() -> NoReturn:
        raise OSError(errno.EROFS, "remounted read-only")

    after = expected(area / "x", "all")
    for at in itertools.count(1, 3):
        site = Site(area / "x")
        before = snapshot(site.root)

        def work(site: Site = site) -> None:
            try:
                site.apply()
            except FixesError as error:
                raise Unwound from error

        status = forked(work, at, fail, again=True)
        recover(site.home)
        settled(site, before, after)
        if status == 0:
            break


def killed_after_commit(site: Site) -> None:
    def work() -> None:
        with Transaction(site.home, site.changes("all")) as transaction:
            transaction.commit()
            kill()

    assert forked(work, 0, kill) == signal.SIGKILL
    assert pending(site.home)


@pytest.mark.parametrize("how", ["in place", "replaced", "removed", "backup"])
def test_what_someone_else_changed_since_is_not_overwritten(area: Path, how: str) -> None:
    site = Site(area / "x")
    before = snapshot(site.root)
    killed_after_commit(site)
    plain = site.package / "plain.py"
    victim = plain
    if how == "backup":
        [victim] = [
            path for path in site.package.glob("*.old") if path.read_bytes() == BEFORE["stat"]
        ][:1]
    good = victim.read_bytes()
    keep = victim.stat()
    if how == "removed":
        victim.unlink()
    elif how == "replaced":
        victim.unlink()
        victim.write_bytes(b"theirs\n")
    else:
        victim.write_bytes(b"theirs\n")
    now = snapshot(site.root)
    for _ in range(2):
        with pytest.raises(FixesError) as caught:
            recover(site.home)
        assert caught.value.exit_code == ExitCode.UNRECOVERABLE
        [problem] = caught.value.problems
        assert problem.kind == "changed-since"
        if how == "backup":
            assert victim.name in problem.what
        else:
            assert problem.where == str(plain)
        assert snapshot(site.root) == now
    victim.write_bytes(good)
    os.utime(victim, ns=(keep.st_mtime_ns, keep.st_mtime_ns))
    assert recover(site.home).rolled_back
    assert snapshot(site.root) == before


def test_a_lost_backup_is_not_taken_for_success(area: Path) -> None:
    site = Site(area / "x")
    killed_after_commit(site)
    for backup in site.package.glob("*.old"):
        backup.unlink()
    with pytest.raises(FixesError) as caught:
        recover(site.home)
    assert caught.value.exit_code == ExitCode.UNRECOVERABLE
    assert {Path(problem.where).name for problem in caught.value.problems} == {
        "core.py",
        "linked.py",
        "plain.py",
        "gone.py",
    }


def test_bytecode_written_by_others_does_not_hinder_the_recovery(area: Path) -> None:
    site = Site(area / "x")
    before = snapshot(site.root)
    killed_after_commit(site)
    (site.package / "__pycache__" / PYC).write_bytes(b"an engine compiled it")
    recover(site.home)
    assert snapshot(site.root) == before


def edit(path: Path, how: str) -> None:
    """What an editor, an installer or a person does to a file."""
    if how == "in place":
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(b"theirs")
    else:
        draft = path.with_name("draft")
        draft.write_bytes(b"theirs")
        draft.replace(path)


MOMENTS = ("staged", "before commit", "in commit", "after commit", "before amend", "at the end")
VICTIMS = ("pkg/core.py", "pkg/linked.py", "pkg/plain.py", "pkg/gone.py", "pkg/added.py")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", ["in place", "replaced"])
@pytest.mark.parametrize("name", [*VICTIMS, "pkg-1.dist-info/RECORD"])
def test_an_edit_while_the_run_is_at_work_is_kept_and_never_called_success(
    area: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str, moment: str
) -> None:
    site = Site(area / "x")
    victim = site.site / name
    shared = how == "in place" and victim.exists() and moment in MOMENTS[:3]
    before = snapshot(site.root)

    def strike(at: str) -> None:
        if moment == at:
            edit(victim, how)

    def back_up(path: Path, backup: Path, real: Any = disk.back_up) -> None:
        if path == site.package / "core.py":  # the first
            strike("staged")
        real(path, backup)

    def sha256_of(path: Path, real: Any = disk.sha256_of) -> str | None:
        # RECORD is looked at, and replaced, after everything else but the state.
        found: str | None = real(path)
        if path == site.state and staged and not os.path.lexists(site.state):
            strike("in commit")
        return found

    monkeypatch.setattr(transaction, "back_up", back_up)
    monkeypatch.setattr(transaction, "sha256_of", sha256_of)
    staged: list[bool] = []
    with (
        pytest.raises(FixesError) as caught,
        Transaction(site.home, site.changes("all")) as run,
    ):
        strike("before commit")
        staged.append(True)
        run.commit()
        strike("after commit")
        strike("before amend")
        run.amend(site.state, b"verified")
        strike("at the end")
        run.finish()
    assert caught.value.exit_code == ExitCode.MISMATCH
    assert {(problem.kind, problem.where) for problem in caught.value.problems} == {
        ("changed-meanwhile", str(victim))
    }
    assert victim.read_bytes().startswith(b"theirs")
    assert not pending(site.home)
    now = snapshot(site.root)
    # Written through, where it still was the file of the cache, or one link less there.
    theirs = {f"site/{name}", f"cache/{victim.name}"} if shared else {f"site/{name}"}
    theirs |= {"cache/core.py"} if victim.name == "core.py" else set()
    for path in theirs:
        now.pop(path, None)
        before.pop(path, None)
    assert now == before


@pytest.mark.parametrize("name", ["core.py", "linked.py", "plain.py", "added.py"])
def test_what_someone_removed_meanwhile_is_put_back(area: Path, name: str) -> None:
    site = Site(area / "x")
    before = snapshot(site.root)
    with (
        pytest.raises(FixesError) as caught,
        Transaction(site.home, site.changes("all")) as run,
    ):
        run.commit()
        (site.package / name).unlink()
        run.finish()
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.MISMATCH, "changed-meanwhile")
    assert problem.where == str(site.package / name)
    assert snapshot(site.root) == before


def test_a_link_to_the_same_bytes_is_a_change_too(area: Path) -> None:
    site = Site(area / "x")
    before = snapshot(site.root)
    core = site.package / "core.py"
    with (
        pytest.raises(FixesError, match="changed-meanwhile"),
        Transaction(site.home, site.changes("all")) as run,
    ):
        run.commit()
        core.rename(area / "moved.py")
        core.symlink_to(area / "moved.py")
        run.finish()
    assert snapshot(site.root) == before
    assert (area / "moved.py").read_bytes() == AFTER["colorsys"]


def test_who_had_the_file_open_does_not_lose_what_he_writes(area: Path) -> None:
    site = Site(area / "x")
    plain = site.package / "plain.py"
    with (
        plain.open("r+b", buffering=0) as file,
        pytest.raises(FixesError) as caught,
        Transaction(site.home, site.changes("all")) as run,
    ):
        run.commit()
        file.write(b"theirs")
        run.finish()
    assert [problem.kind for problem in caught.value.problems] == ["changed-meanwhile"]
    assert plain.read_bytes().startswith(b"theirs")
    assert (site.package / "core.py").read_bytes() == BEFORE["colorsys"]


def test_a_run_that_failed_otherwise_says_too_what_it_left_as_someone_else_made_it(
    area: Path,
) -> None:
    site = Site(area / "x")
    plain = site.package / "plain.py"
    failed = Problem(ExitCode.VERIFICATION_FAILED, "probe", "a probe failed")
    with pytest.raises(FixesError) as caught, Transaction(site.home, site.changes("all")) as run:
        run.commit()
        plain.write_bytes(b"theirs")
        raise FixesError(failed)
    assert [problem.kind for problem in caught.value.problems] == ["probe", "changed-meanwhile"]
    assert plain.read_bytes() == b"theirs"
    assert (site.package / "core.py").read_bytes() == BEFORE["colorsys"]
    assert not pending(site.home)


def killed_with_a_package_elsewhere(area: Path, prefix: Path) -> tuple[Site, Path]:
    """A site whose package is a link, killed after its commit; and the real package."""
    site = Site(area / "x")
    real = site.package.rename(area / "real")
    site.package.symlink_to(real)
    cached = Path(prefix, *site.package.parts[1:]) / PYC
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"bytecode")
    changes = [*site.changes("all"), Change(cached, None, b"new bytecode", cache=True)]

    def work() -> None:
        with Transaction(site.home, changes, roots_of(site.site, prefix)) as run:
            run.commit()
            kill()

    assert forked(work, 0, kill) == signal.SIGKILL
    return site, real


def roots_of(site: Path, prefix: Path) -> Roots:
    package = site / "pkg"
    caches = bytecode.roots(package, str(prefix))
    return Roots.of(site / "pkg-1.dist-info", {"package:pkg": package, **caches})


def test_a_copy_of_a_killed_tree_is_recovered_itself_and_not_the_original(area: Path) -> None:
    prefix = area / "prefix"
    site, real = killed_with_a_package_elsewhere(area, prefix)
    before = snapshot(area)
    copy = area / "copy"
    subprocess.run(["cp", "-aL", site.site, copy], check=True)
    assert recover(copy / site.home.name, roots_of(copy, prefix)).rolled_back
    assert (copy / "pkg" / "plain.py").read_bytes() == BEFORE["stat"]
    assert not (copy / "pkg" / "added.py").exists()
    assert not pending(copy / site.home.name)
    assert not list(copy.rglob(".fixes-*"))
    shutil.rmtree(copy)
    assert snapshot(area) == before
    assert recover(site.home, roots_of(site.site, prefix)).rolled_back
    assert (real / "plain.py").read_bytes() == BEFORE["stat"]
    assert not list(area.rglob(".fixes-*"))


def test_bytecode_of_a_prefix_that_is_not_known_any_more_does_not_hinder(area: Path) -> None:
    site, real = killed_with_a_package_elsewhere(area, area / "prefix")
    assert recover(site.home, Roots.of(site.home, {"package:pkg": real})).rolled_back
    assert (real / "plain.py").read_bytes() == BEFORE["stat"]


STEM = ".fixes-00c0ffee-0"


@pytest.mark.parametrize("name", [journal.NAME, journal.DONE])
@pytest.mark.parametrize(
    ("root", "way"),
    [
        ("site", "../victim"),
        ("site", "pkg/../../victim"),
        ("site", "link/victim"),
        ("site", "/victim"),
        ("site", "."),
        ("elsewhere", "victim"),
        ("cache:pkg:0", "../victim"),
    ],
)
@pytest.mark.parametrize("what", ["added", "cached", "replaced", "folder"])
def test_a_journal_that_leads_out_of_the_tree_is_not_followed(
    area: Path, name: str, root: str, way: str, what: str
) -> None:
    site = Site(area / "x")
    victim = area / "x" / ("victim.pyc" if what == "cached" else "victim")
    way += ".pyc" if what == "cached" and way.endswith("victim") else ""
    if what == "folder":
        victim.mkdir()
    else:
        victim.write_bytes(b"theirs")
    (victim.parent / f"{STEM}.old").write_bytes(b"not theirs")
    (site.site / "link").symlink_to(area / "x")
    theirs, other = sha256(b"theirs"), sha256(b"not theirs")
    inside = ["site", "pkg/plain.py", STEM, None, [sha256(BEFORE["stat"])], False]
    entry = {
        "added": [root, way, STEM, None, [theirs], False],
        "cached": [root, way, STEM, None, [theirs], True],
        "replaced": [root, way, STEM, other, [theirs], False],
        "folder": inside,
    }[what]
    folders = [[root, way]] if what == "folder" else []
    document = {"format": 1, "entries": [inside, entry], "folders": folders}
    (site.home / name).write_text(json.dumps(document))
    before = snapshot(area)
    with pytest.raises(FixesError) as caught:
        recover(site.home, Roots.of(site.home, {"cache:pkg:0": area / "x" / "prefix"}))
    [problem] = caught.value.problems
    assert problem.code == ExitCode.UNRECOVERABLE
    if way != ".":
        assert problem.kind in ("unsafe-path", "journal-unreadable")
        assert way in f"{problem.where} {problem.what}"
    assert snapshot(area) == before


GOOD: list[Any] = ["site", "pkg/plain.py", STEM, None, [None], False]


@pytest.mark.parametrize(
    "entry",
    [
        ["site", "pkg/pl\0ain.py", *GOOD[2:]],
        ["site", "pkg/\ud800.py", *GOOD[2:]],
        ["site", 5, *GOOD[2:]],
        [5, *GOOD[1:]],
        [["site"], *GOOD[1:]],
        [*GOOD[:2], 5, *GOOD[3:]],
        [*GOOD[:2], "../x", *GOOD[3:]],
        [*GOOD[:2], f"{STEM}/x", *GOOD[3:]],
        [*GOOD[:2], f"{STEM}\n", *GOOD[3:]],
        [*GOOD[:2], ".fixes-00C0FFEE-0", *GOOD[3:]],
        [*GOOD[:2], "plain", *GOOD[3:]],
        [*GOOD[:3], 5, [None], False],
        [*GOOD[:3], "x", [None], False],
        [*GOOD[:3], disk.NOT_A_FILE, [None], False],
        [*GOOD[:3], None, [], False],
        [*GOOD[:3], None, "x", False],
        [*GOOD[:3], None, [5], False],
        [*GOOD[:3], None, {}, False],
        [*GOOD[:5], 1],
        [*GOOD[:5], True],
        GOOD[:5],
        {},
        None,
        5,
        "abcdef",
    ],
)
@pytest.mark.parametrize("place", ["entries", "folders"])
def test_a_journal_of_another_shape_is_unrecoverable(area: Path, entry: object, place: str) -> None:
    site = Site(area / "x")
    document: dict[str, object] = {"format": 1, "entries": [], "folders": []}
    document[place] = [entry]
    unreadable(site, json.dumps(document))
    document[place] = entry
    unreadable(site, json.dumps(document))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format": 1, "entries": ' + "[" * 100_000 + "]" * 100_000 + ', "folders": []}',
        '{"format": ' + "9" * 10_000 + "}",
        '{"format": 1, "entries": [], "folders": 5}',
        "5",
        '"x"',
        "null",
    ],
)
def test_a_journal_that_is_another_document_is_unrecoverable(area: Path, text: str) -> None:
    unreadable(Site(area / "x"), text)


def unreadable(site: Site, text: str) -> None:
    path = site.home / journal.NAME
    path.write_text(text)
    before = snapshot(site.root)
    with pytest.raises(FixesError) as caught:
        recover(site.home)
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.UNRECOVERABLE, "journal-unreadable")
    assert problem.where == str(path)
    assert snapshot(site.root) == before


def too_large(path: Path) -> None:
    path.touch()
    os.truncate(path, disk.LARGEST + 1)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "folder": os.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "circle": lambda path: path.symlink_to(path.name),
    "too large": too_large,
}


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_is_not_read(area: Path, what: str) -> None:
    path = area / "x"
    NO_FILES[what](path)
    with pytest.raises(disk.UnreadableError) as caught:
        disk.read_file(path)
    assert caught.value.strerror in ("is no regular file", "is larger than 64 MiB")
    assert disk.sha256_of(path) == disk.NOT_A_FILE


def test_a_file_is_read_as_a_whole(area: Path) -> None:
    path = area / "x"
    with pytest.raises(FileNotFoundError):
        disk.read_file(path)
    for size in (0, 1, (1 << 20) - 1, 1 << 20, (3 << 20) + 1):
        content = os.urandom(size)
        path.write_bytes(content)
        assert disk.read_file(path) == content
        assert disk.read_file(str(path), size) == content
    with pytest.raises(disk.UnreadableError):
        disk.read_file(path, size - 1)
    assert disk.read_file(Path("/proc/self/stat"))  # says that it is empty


@pytest.mark.parametrize("what", NO_FILES)
def test_a_file_that_became_none_is_named(area: Path, what: str) -> None:
    site = Site(area / "x")
    plain = site.package / "plain.py"
    plain.unlink()
    NO_FILES[what](plain)
    with pytest.raises(FixesError) as caught:
        site.apply()
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.MISMATCH, "changed-meanwhile")
    assert problem.where == str(plain)


@pytest.mark.parametrize("name", [journal.NAME, journal.DONE])
@pytest.mark.parametrize("what", NO_FILES)
def test_a_journal_that_is_no_file_is_unrecoverable(area: Path, name: str, what: str) -> None:
    site = Site(area / "x")
    NO_FILES[what](site.home / name)
    with pytest.raises(FixesError) as caught:
        site.apply()
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.UNRECOVERABLE, "unreadable")
    assert problem.where == str(site.home / name)


@pytest.mark.parametrize("what", ["FIFO", "endless", "circle"])
def test_a_draft_that_is_no_file_is_written_anew(area: Path, what: str) -> None:
    path = area / journal.DRAFT
    NO_FILES[what](path)
    disk.rewrite(path, b"content")
    assert not path.is_symlink()
    assert path.read_bytes() == b"content"


def test_what_no_journal_knows_of_is_found(area: Path) -> None:
    site = Site(area / "x")
    paths = [change.path for change in site.changes("modify")]
    assert unclaimed(site.home, paths) == []
    killed_after_commit(site)
    left = {path for path in site.site.rglob(".fixes-*") if path.name != journal.NAME}
    assert len(left) > 4
    assert unclaimed(site.home, paths) == []  # a journal knows
    (site.home / journal.NAME).unlink()
    for name in (".fixes-theirs", f"{STEM}.txt", f"{STEM}x.old", ".fixes-123-0.old"):
        (site.package / name).touch()
    found = unclaimed(site.home, paths)
    assert len(found) == len(set(found))
    assert set(found) == {path for path in left if path.parent.name != "alone"}


def test_what_is_beside_files_elsewhere_may_be_anothers(area: Path) -> None:
    """A checkout that two environments have installed: a journal in the other may know it."""
    site = Site(area / "x")
    checkout = area / "checkout"
    checkout.mkdir()
    (checkout / f"{STEM}.old").touch()
    (site.site / "link").symlink_to(checkout)
    assert unclaimed(site.home, [checkout / "core.py", site.site / "link" / "core.py"]) == []


@pytest.mark.parametrize("name", [journal.NAME, journal.DONE])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"\0" * len(content),
        lambda content: content.replace(b'"format": 1', b'"format": 2'),
        lambda content: b'{"format": 1, "entries": [["a"]], "folders": []}',
        lambda content: b"[]",
    ],
)
def test_a_damaged_journal_is_unrecoverable(
    area: Path, damage: Callable[[bytes], bytes], name: str
) -> None:
    site = Site(area / "x")
    killed_after_commit(site)
    path = site.home / journal.NAME
    path.write_bytes(damage(path.read_bytes()))
    path = path.rename(site.home / name)
    now = snapshot(site.root)
    with pytest.raises(FixesError) as caught:
        recover(site.home)
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.UNRECOVERABLE, "journal-unreadable")
    assert problem.where == str(path)
    assert snapshot(site.root) == now


def test_a_tree_that_was_moved_is_recovered_where_it_is(area: Path) -> None:
    site = Site(area / "x")
    before = snapshot(site.site)
    killed_after_commit(site)
    moved = site.site.rename(site.root / "elsewhere")
    recovered = recover(moved / site.home.name)
    assert moved / "pkg" / "core.py" in recovered.paths
    assert snapshot(moved) == before


def test_a_home_reached_through_a_link_is_the_same_home(area: Path) -> None:
    site = Site(area / "x")
    before = snapshot(site.site)
    killed_after_commit(site)
    link = area / "link"
    link.symlink_to(site.site)
    assert pending(link / site.home.name)
    assert recover(link / site.home.name).rolled_back
    assert snapshot(site.site) == before


def test_files_outside_site_packages_are_recovered_too(area: Path) -> None:
    site = Site(area / "x")
    outside = area / "checkout" / "core.py"
    outside.parent.mkdir()
    outside.write_bytes(b"old\n")
    changes = [Change(outside, sha256(b"old\n"), b"new\n")]
    roots = Roots.of(site.home, {"package:pkg": outside.parent})

    def work() -> None:
        with Transaction(site.home, changes, roots) as transaction:
            transaction.commit()
            kill()

    forked(work, 0, kill)
    assert outside.read_bytes() == b"new\n"
    assert recover(site.home, roots).paths == (outside,)
    assert outside.read_bytes() == b"old\n"
    assert os.listdir(outside.parent) == ["core.py"]


def test_the_next_transaction_recovers_first(area: Path) -> None:
    after = expected(area / "x", "all")
    site = Site(area / "x")
    before = snapshot(site.root)
    killed_after_commit(site)
    site.apply()
    assert settled(site, before, after) == "new"


def test_recovering_nothing_is_no_error(area: Path) -> None:
    site = Site(area / "x")
    assert not pending(site.home)
    assert recover(site.home) == journal.Recovered(False)


def test_every_file_that_changed_meanwhile_is_named_and_nothing_is_written(area: Path) -> None:
    site = Site(area / "x")
    (site.package / "plain.py").write_bytes(b"theirs")
    (site.package / "added.py").symlink_to("nowhere")
    (site.package / "gone.py").unlink()
    (site.package / "gone.py").mkdir()
    before = snapshot(site.root)
    folder = site.home.stat().st_mtime_ns
    with pytest.raises(FixesError) as caught, Transaction(site.home, site.changes("all")):
        pytest.fail("it was entered")
    assert caught.value.exit_code == ExitCode.MISMATCH
    assert {problem.kind for problem in caught.value.problems} == {"changed-meanwhile"}
    assert {Path(problem.where).name for problem in caught.value.problems} == {
        "plain.py",
        "added.py",
        "gone.py",
    }
    assert snapshot(site.root) == before
    assert site.home.stat().st_mtime_ns == folder


def test_one_path_cannot_be_changed_twice(area: Path) -> None:
    site = Site(area / "x")
    (area / "link").symlink_to(site.package)
    change = Change(site.package / "plain.py", sha256(BEFORE["stat"]), b"")
    other = Change(area / "link" / "plain.py", sha256(BEFORE["stat"]), b"")
    with pytest.raises(ValueError, match="two changes"):
        Transaction(site.home, [change, other])


@pytest.mark.parametrize("stage", ["before commit", "after commit", "after amend"])
def test_a_failed_verification_puts_the_very_files_back(area: Path, stage: str) -> None:
    site = Site(area / "x")
    before = snapshot(site.root)
    transaction = Transaction(site.home, site.changes("all"))
    with pytest.raises(ZeroDivisionError), transaction:
        if stage != "before commit":
            transaction.commit()
            assert (site.package / "core.py").read_bytes() == AFTER["colorsys"]
            assert (site.cache / "core.py").read_bytes() == BEFORE["colorsys"]
        if stage == "after amend":
            transaction.amend(site.state, b"verified")
            assert site.state.read_bytes() == b"verified"
        raise ZeroDivisionError
    assert snapshot(site.root) == before


def test_what_others_put_into_a_new_folder_outlives_the_rollback(area: Path) -> None:
    site = Site(area / "x")
    with Transaction(site.home, site.changes("add")) as transaction:
        transaction.commit()
        (site.package / "deep" / "theirs.txt").write_text("kept")
    assert [path.name for path in (site.package / "deep").iterdir()] == ["theirs.txt"]
    assert not pending(site.home)


def test_mode_owner_and_attributes_are_kept(tmp_path: Path) -> None:
    site = Site(tmp_path / "x")
    core = site.package / "core.py"
    plain = site.package / "plain.py"
    core.chmod(0o440)
    if os.geteuid() == 0:
        os.chown(core, 65534, 12345)
        os.chown(site.package, 4321, 4322)
    try:
        os.setxattr(plain, "user.origin", b"mirror")
    except OSError:
        pytest.skip("no user attributes here")
    umask = os.umask(0o077)
    try:
        site.apply()
    finally:
        os.umask(umask)
    assert core.read_bytes() == AFTER["colorsys"]
    assert stat.S_IMODE(core.stat().st_mode) == 0o440
    assert os.getxattr(plain, "user.origin") == b"mirror"
    for added in (site.package / "added.py", site.package / "deep" / "er" / "added.py"):
        assert stat.S_IMODE(added.stat().st_mode) == 0o644
        assert stat.S_IMODE(added.parent.stat().st_mode) == 0o755
    if os.geteuid() == 0:
        assert (core.stat().st_uid, core.stat().st_gid) == (65534, 12345)
        assert (added.stat().st_uid, added.stat().st_gid) == (4321, 4322)


def test_a_symlinked_file_becomes_a_file_with_its_targets_mode(area: Path) -> None:
    site = Site(area / "x")
    linked = site.package / "linked.py"
    (site.cache / "linked.py").chmod(0o604)
    target = (site.cache / "linked.py").stat()
    site.apply()
    assert not linked.is_symlink()
    assert linked.read_bytes() == AFTER["colorsys"]
    assert stat.S_IMODE(linked.stat().st_mode) == 0o604
    now = (site.cache / "linked.py").stat()
    assert (now.st_mtime_ns, now.st_ctime_ns) == (target.st_mtime_ns, target.st_ctime_ns)


def test_the_new_mtime_is_a_second_past_the_old_one_and_not_before_now(area: Path) -> None:
    site = Site(area / "x")
    core, plain = site.package / "core.py", site.package / "plain.py"
    future = time.time_ns() + 10**12
    os.utime(core, ns=(future, future))
    started = time.time_ns()
    assert fresh_mtime(core) == future + 10**9
    site.apply()
    assert core.stat().st_mtime_ns == future + 10**9
    assert plain.stat().st_mtime_ns == 1_800_000_000_000_000_000  # as asked for
    assert (site.package / "linked.py").stat().st_mtime_ns >= started


def test_names_as_long_as_the_filesystem_allows(area: Path) -> None:
    site = Site(area / "x")
    long = site.package / ("n" * 252 + ".py")
    Site.write(long, b"old\n")
    with Transaction(site.home, [Change(long, sha256(b"old\n"), b"new\n")]) as transaction:
        transaction.commit()
        transaction.finish()
    assert long.read_bytes() == b"new\n"


def refused(site: Site, kind: str) -> str:
    """Try to apply: it must be refused with this kind, all files untouched. Says where."""
    before = snapshot(site.root)
    with pytest.raises(FixesError) as caught:
        site.apply()
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.CANNOT_WRITE, kind)
    assert problem.hint
    assert snapshot(site.root) == before
    assert not pending(site.home)
    return problem.where


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts something for the time of a test; skips where that is not allowed."""
    mounted: list[Path] = []

    def run(*options: str, at: Path) -> Path:
        at.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *options, str(at)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mount is refused: {done.stderr.strip()}")
        mounted.append(at)
        return at

    yield run
    for at in reversed(mounted):
        subprocess.run(["umount", "-l", str(at)], check=True)


def room(folder: Path) -> int:
    now = os.statvfs(folder)
    return now.f_bfree * now.f_frsize


def test_a_full_disk_changes_nothing(tmp_path: Path, mount: Callable[..., Path]) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", at=tmp_path / "disk")
    places = []
    for left in itertools.count(0, 4096):
        site = Site(disk / "x")
        filler = disk / "filler"
        filler.write_bytes(b"\1" * (room(disk) - left))
        try:
            places.append(Path(refused(site, "disk-full")).name)
        except pytest.fail.Exception:
            break  # it fitted
        finally:
            filler.unlink()
    assert site.state.read_bytes() == b"verified"
    assert {"core.py", "linked.py", "plain.py", journal.NAME} <= set(places)


def test_a_disk_without_inodes_changes_nothing(tmp_path: Path, mount: Callable[..., Path]) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=4m,nr_inodes=64", "tmpfs", at=tmp_path / "disk")
    places = []
    for left in itertools.count(0):
        site = Site(disk / "x")
        fillers = [disk / f"filler-{n}" for n in range(os.statvfs(disk).f_ffree - left)]
        for filler in fillers:
            filler.symlink_to("x")
        try:
            places.append(Path(refused(site, "disk-full")).name)
        except pytest.fail.Exception:
            break
        finally:
            for filler in fillers:
                filler.unlink()
    assert site.state.read_bytes() == b"verified"
    assert {"core.py", "deep", journal.NAME} <= set(places)


def test_a_read_only_filesystem_is_named(tmp_path: Path, mount: Callable[..., Path]) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", at=tmp_path / "disk")
    site = Site(disk / "x")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert refused(site, "read-only") == str(site.home / journal.NAME)


def test_a_read_only_package_under_a_writable_home_is_named(
    area: Path, mount: Callable[..., Path]
) -> None:
    site = Site(area / "x")
    mount("--bind", str(site.package), at=site.package)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(site.package)], check=True)
    assert Path(refused(site, "read-only")).is_relative_to(site.package)


def test_one_file_that_is_a_mount_of_its_own_changes_nothing(
    area: Path, mount: Callable[..., Path]
) -> None:
    """As a ConfigMap's subPath is: it can be opened, but never replaced."""
    site = Site(area / "x")
    plain = site.package / "plain.py"
    done = subprocess.run(["mount", "--bind", str(plain), str(plain)], capture_output=True)
    if done.returncode:
        pytest.skip("mount is refused")
    try:
        assert refused(site, "io-error") == str(plain)
    finally:
        subprocess.run(["umount", "-l", str(plain)], check=True)


@pytest.mark.parametrize(
    ("owned", "where"),
    [
        ((), ".fixes-journal.json"),
        (("pkg-1.dist-info",), "deep"),
        (("pkg-1.dist-info", "pkg", "pkg/__pycache__"), "core.py"),
    ],
    ids=["nothing", "home", "folders"],
)
def test_another_users_files_are_refused(area: Path, owned: tuple[str, ...], where: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become someone else")
    site = Site(area / "x")
    for path in site.root.rglob("*.py"):
        path.chmod(0o644)
    for path in (site.home / "RECORD", *(site.package / "__pycache__").iterdir()):
        path.chmod(0o644)
    for name in owned:
        os.chown(site.site / name, 65534, 65534)

    def work() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        assert Path(refused(site, "permission")).name == where

    assert forked(work, 0, kill) == 0
