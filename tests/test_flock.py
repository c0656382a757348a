"""The lock between runs, with real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from fixes import flock
from fixes.errors import ExitCode, FixesError


def never() -> NoReturn:
    pytest.fail("it had to wait")


@contextmanager
def elsewhere(work: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """A child that does ``work``; entered once the child has called what it is given."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            work(lambda: os.close(writing))
            os._exit(0)
        except BaseException as error:
            print("in the child:", repr(error), file=sys.__stderr__, flush=True)
            os._exit(1)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def holding(*directories: Path, seconds: float) -> Callable[[Callable[[], None]], None]:
    def work(ready: Callable[[], None]) -> None:
        with flock.held(directories, 0, never):
            ready()
            time.sleep(seconds)

    return work


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with flock.held([tmp_path], 0, never):
        assert list(tmp_path.iterdir()) == []
    with flock.held([tmp_path], 0, never):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_directory_can_be_locked(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with flock.held([tmp_path], 0, never):
        pass


def test_twenty_processes_take_turns(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = []
    for _ in range(20):
        child = os.fork()
        if not child:
            try:
                with flock.held([folder], 30, lambda: None):
                    before = int(counter.read_text())
                    time.sleep(0.005)
                    counter.write_text(str(before + 1))
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20
    assert counter.read_text() == "20"


def test_it_waits_says_so_once_and_goes_on(tmp_path: Path) -> None:
    said = []
    with (
        elsewhere(holding(tmp_path, seconds=0.5)),
        flock.held([tmp_path], 30, lambda: said.append(1)),
    ):
        assert said == [1]


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_it_gives_up_in_time_and_names_the_directory(tmp_path: Path, timeout: float) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    one.mkdir()
    two.mkdir()
    said: list[int] = []
    with elsewhere(holding(two, seconds=60)):
        started = time.monotonic()
        with (
            pytest.raises(FixesError) as caught,
            flock.held([two, one], timeout, lambda: said.append(1)),
        ):
            pytest.fail("two runs at once")
        assert timeout <= time.monotonic() - started < timeout + 5
        with flock.held([one], 0, never):  # not held on to
            pass
    [problem] = caught.value.problems
    assert (problem.code, problem.kind, problem.where) == (ExitCode.LOCKED, "locked", str(two))
    assert len(said) == (timeout > 0)


def test_a_killed_holder_frees_it(tmp_path: Path) -> None:
    with elsewhere(holding(tmp_path, seconds=60)) as child:
        os.kill(child, signal.SIGKILL)
        with flock.held([tmp_path], 30, lambda: None):
            pass


def test_the_order_of_the_directories_does_not_matter(tmp_path: Path) -> None:
    """Who waits for the first holds none of the others: two runs cannot wait for each other."""
    one, two = tmp_path / "1", tmp_path / "2"
    one.mkdir()
    two.mkdir()

    def wait(ready: Callable[[], None]) -> None:
        with flock.held([two, one], 30, ready):
            pass

    with elsewhere(holding(one, seconds=60)), elsewhere(wait), flock.held([two], 0, never):
        pass


def test_two_names_of_one_directory_are_one(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    with flock.held([folder, link, folder], 0, never):
        pass
    with (
        elsewhere(holding(link, seconds=60)),
        pytest.raises(FixesError, match="locked"),
        flock.held([folder], 0, never),
    ):
        pytest.fail("two runs at once")


def test_a_child_process_does_not_inherit_it(tmp_path: Path) -> None:
    with flock.held([tmp_path], 0, never):
        child = subprocess.Popen(
            [sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd')); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
        assert child.stdout
        child.stdout.readline()
    try:
        with flock.held([tmp_path], 0, never):
            pass
    finally:
        child.communicate(b"\n")


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    with flock.held([tmp_path], 0, never):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with flock.held([tmp_path], 0, never):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_directory_replaced_while_waiting_is_locked_as_it_is_now(tmp_path: Path) -> None:
    """An upgrade replaced the dist-info: a lock on the old one would exclude nobody."""
    home = tmp_path / "home"
    home.mkdir()

    def replaced() -> None:
        home.rename(tmp_path / "gone")
        home.mkdir()

    with (
        elsewhere(holding(home, seconds=0.3)),
        flock.held([home], 30, replaced),
        elsewhere_locked(home) as locked,
    ):
        assert locked


@contextmanager
def elsewhere_locked(folder: Path) -> Iterator[bool]:
    """Whether a fresh descriptor finds the folder locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield False
    except BlockingIOError:
        yield True
    finally:
        os.close(descriptor)


def test_a_directory_that_went_away_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(FixesError) as caught,
        flock.held([tmp_path / "gone"], 0, never),
    ):
        pytest.fail("locked nothing")
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.MISMATCH, "changed-meanwhile")
    assert problem.where == str(tmp_path / "gone")


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF], ids=errno.errorcode.get
)
def test_a_filesystem_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(FixesError) as caught, flock.held([tmp_path], 0, never):
        pytest.fail("locked nothing")
    [problem] = caught.value.problems
    assert (problem.code, problem.kind) == (ExitCode.CANNOT_WRITE, "no-locks")
    assert os.strerror(number) in problem.what


def test_an_unreadable_directory_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become someone else")
    tmp_path.chmod(0o700)

    def work(ready: Callable[[], None]) -> None:
        os.setuid(65534)
        with pytest.raises(FixesError) as caught, flock.held([tmp_path], 0, never):
            pytest.fail("locked")
        [problem] = caught.value.problems
        assert (problem.code, problem.kind) == (ExitCode.CANNOT_WRITE, "permission")

    child = os.fork()
    if not child:
        try:
            work(lambda: None)
            os._exit(0)
        except BaseException as error:
            print("in the child:", repr(error), file=sys.__stderr__, flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_descriptors_are_closed_whatever_happens(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    for timeout in (0, 0.05):
        with (
            elsewhere(holding(tmp_path, seconds=60)),
            pytest.raises(FixesError),
            flock.held([tmp_path], timeout, lambda: None),
        ):
            pytest.fail("two runs at once")
    with pytest.raises(ZeroDivisionError), flock.held([tmp_path], 0, never):
        raise ZeroDivisionError
    assert set(Path("/proc/self/fd").iterdir()) == before
