"""Kills at every step, runs at the same time, full and read-only disks, by the command line."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import places
import pytest
from places import Place
from release import BUNDLE, LAUNCHER, environ, launch

#: A process that is killed before its n-th write to the disk, for every n (or every so many),
#: then asked for its status, then run again. Each run is ``main`` in a fork of this one.
KILLER = """
import io, itertools, json, os, shutil, signal, sys
checkout, original, work, step, *arguments = sys.argv[1:]
sys.path.insert(0, checkout)
from fixes import cli, application, commit, verify
from fixes.commands import apply, revert, status

WRITES = {"os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.setxattr", "os.symlink", "os.utime"}

def forked(arguments, at=0):
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with open(reader) as stream:
            said = stream.read()
        return os.waitpid(child, 0)[1], said
    os.dup2(writer, 1)
    counter = itertools.count(1)
    def strike():
        if at and next(counter) == at:
            os.kill(os.getpid(), signal.SIGKILL)
    def hook(event, given):
        if event in WRITES or event == "open" and isinstance(given[2], int) and given[2] & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            strike()
    write, fsync = os.write, os.fsync
    def torn(descriptor, data):
        if at and next(counter) == at:
            write(descriptor, data[:len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data)
    def synced(descriptor):
        strike()
        return fsync(descriptor)
    os.write, os.fsync = torn, synced
    sys.addaudithook(hook)
    code = cli.main(arguments)
    sys.stdout.flush()
    os._exit(code)

def files():
    found = {}
    for folder, _, names in os.walk(work):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as stream:
                found[os.path.relpath(path, work)] = stream.read()
    unlike = (".pyc", "-applied.json")
    return {path: data for path, data in found.items() if not path.endswith(unlike)}

def fresh():
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(original, work, symlinks=True)

where = arguments[arguments.index("--profiles"):]
fresh()
first = files()
assert forked(arguments)[0] == 0
final = files()
killed = interrupted = 0
for at in itertools.count(1, int(step)):
    fresh()
    code, said = forked(arguments, at)
    if code == 0:
        break
    assert code == signal.SIGKILL, (at, code, said)
    killed += 1
    pending = any(name.startswith(".fixes-journal") for folder, _, names in os.walk(work)
        for name in names)
    code, said = forked(["status", "--json", *where])
    document = json.loads(said)
    kinds = {problem["kind"] for problem in document["problems"]}
    assert ("interrupted" in kinds) is pending, (at, said)
    assert code == (pending << 8), (at, said)
    interrupted += pending
    if not pending:
        assert files() in (first, final), at
    left = files()
    code, said = forked([*arguments, "--dry-run", "--json"])
    assert code == (pending << 8) and ('"interrupted"' in said) is pending, (at, said)
    assert files() == left, at
    code, said = forked(arguments)
    assert code == 0, (at, said)
    assert files() == final, at
print(json.dumps([killed, interrupted, at]))
"""


@pytest.fixture
def area() -> Iterator[Path]:
    """A folder that all users may enter, on a filesystem with a cheap fsync if there is one."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shm if os.access(shm, os.W_OK) else None))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    shutil.rmtree(folder)


def killed(
    python: Path, original: Path, work: Path, step: int, *arguments: str | Path
) -> list[int]:
    done = subprocess.run(
        [python, "-c", KILLER, LAUNCHER.parent, original, work, str(step), *arguments],
        capture_output=True,
        text=True,
        env=environ(),
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts: list[int] = json.loads(done.stdout)
    return counts


def test_a_kill_at_every_step_of_an_apply(area: Path) -> None:
    place = places.unpacked(area / "original")
    (place.package / "__pycache__").mkdir()
    tag = sys.implementation.cache_tag
    (place.package / f"__pycache__/core.{tag}.pyc").write_bytes(b"stale")
    work = area / "work"
    where = ("--profiles", place.release.root, "--tree", work)
    deaths, interrupted, _ = killed(Path(sys.executable), place.site, work, 1, BUNDLE, *where)
    assert deaths > 60 and interrupted > 50


def test_a_kill_at_every_step_of_a_revert(area: Path) -> None:
    place = places.unpacked(area / "original")
    place.ok(BUNDLE)
    work = area / "work"
    where = ("--profiles", place.release.root, "--tree", work)
    deaths, interrupted, _ = killed(
        Path(sys.executable), place.site, work, 1, "revert", "--all", *where
    )
    assert deaths > 50 and interrupted > 40


def test_a_kill_at_many_steps_with_imports_probes_and_bytecode(area: Path) -> None:
    place = places.environment(area / "original", "pip")
    work = area / "work"
    shutil.copytree(area / "original", work, symlinks=True)
    deaths, interrupted, _ = killed(
        work / "bin/python", area / "original", work, 7, BUNDLE, "--profiles", place.release.root
    )
    assert deaths > 8 and interrupted > 6


def started(place: Place, *arguments: str, **options: object) -> subprocess.Popen[str]:
    assert place.python is not None
    return subprocess.Popen(
        [place.python, LAUNCHER, *arguments, "--profiles", place.release.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
        cwd="/",
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("count", [2, 20])
def test_runs_at_the_same_time_on_one_tree(tmp_path: Path, count: int) -> None:
    place = places.environment(tmp_path / "env")
    runs = [started(place, BUNDLE, "--json") for _ in range(count)]
    documents = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert {run.returncode for run in runs} == {0}
    assert sorted(len(document["changed"]) for document in documents) == [0] * (count - 1) + [5]
    assert len({document["digest"] for document in documents}) == 1
    assert {document["level"] for document in documents} == {"probe"}
    assert place.is_fixed()


def test_runs_for_different_fixes_at_the_same_time(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    runs = [started(place, name) for name in ("begin", "stop", "end")]
    for run in runs:
        run.communicate(timeout=120)
    assert {run.returncode for run in runs} == {0}
    assert place.is_fixed()


def test_another_run_that_does_not_end(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    holder = os.open(place.info, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        said = place.fails(7, BUNDLE, "--wait", "0.2")
        assert "waiting for another run" in said and "locked" in said
        document = place.json(BUNDLE, "--wait", "0")
        assert document["problems"][0]["kind"] == "locked"
        for looking in (("status",), ("diff", BUNDLE), (BUNDLE, "--dry-run")):
            place.ok(*looking)
    finally:
        os.close(holder)
    place.ok(BUNDLE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_waits_can_be_ended(tmp_path: Path, number: int, code: int) -> None:
    place = places.environment(tmp_path / "env")
    holder = os.open(place.info, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    run = started(place, BUNDLE)
    assert run.stderr and "waiting for another run" in run.stderr.readline()
    run.send_signal(number)
    assert run.wait(timeout=30) == code
    run.communicate()
    os.close(holder)
    assert place.is_pristine()


def test_a_run_that_cannot_be_recovered(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    (place.info / ".fixes-journal.json").write_text("{")
    said = place.fails(8, BUNDLE)
    assert "journal-unreadable" in said and "Nothing was changed" not in said
    assert place.json("status")["problems"][-1]["kind"] == "interrupted"


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


def test_a_full_disk(tmp_path: Path, mount: Callable[..., Path]) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", at=tmp_path / "disk")
    place = places.unpacked(disk / "site")
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="space"):
        while True:
            os.write(filler, bytes(4096))
    before = places.identities(place.site)
    for spare in range(6):
        os.truncate(filler, os.fstat(filler).st_size - (4096 if spare else 0))
        done = place.run(BUNDLE)
        assert done.returncode == 6 and "disk-full" in done.stderr, (spare, done)
        assert place.is_pristine()
    for path, (inode, mode, size, mtime, _) in before.items():
        now = places.identities(place.site)[path]
        assert now[:2] == (inode, mode) and (os.path.isdir(path) or now[2:4] == (size, mtime))
    os.truncate(filler, 0)
    os.close(filler)
    place.ok(BUNDLE)
    assert place.is_fixed()


def test_a_read_only_mount(tmp_path: Path, mount: Callable[..., Path]) -> None:
    place = places.environment(tmp_path / "env")
    mount("--bind", str(tmp_path / "env"), at=tmp_path / "env")
    remount = ["mount", "-o", "remount,bind,ro", str(tmp_path / "env")]
    subprocess.run(remount, check=True)
    said = place.fails(6, BUNDLE)
    assert "read-only" in said and "build the fixes into the image" in said
    subprocess.run([*remount[:2], "remount,bind,rw", remount[3]], check=True)
    place.ok(BUNDLE)
    subprocess.run(remount, check=True)
    assert "nothing to change" in place.ok(BUNDLE)
    assert "read-only" in place.fails(6, "revert", "--all")
    # Asked for something that is in, but was never recorded so: proven, and said.
    assert "nothing to change" in place.ok("end")


#: An interpreter that every user may start.
SYSTEM = "/usr/bin/python3"


def as_nobody(place: Place, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run as a user who owns nothing."""
    setpriv = shutil.which("setpriv")
    if os.getuid() or setpriv is None:
        pytest.skip("needs root and setpriv")
    user = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups"]
    return launch(place.python or "", *arguments, before=user)


def test_somebody_who_may_only_read(area: Path) -> None:
    if not Path(SYSTEM).exists():
        pytest.skip(f"no {SYSTEM}, which everybody may start")
    place = places.by_uv(area / "env", python=SYSTEM)
    root = shutil.copytree(place.release.root, area / "root")
    with_profiles = ("--profiles", root)
    done = as_nobody(place, BUNDLE, *with_profiles)
    assert done.returncode == 6 and "permission" in done.stderr
    assert "run as the owner of the files, or build the fixes into the image" in done.stderr
    assert place.is_pristine()
    assert as_nobody(place, BUNDLE, "--dry-run", *with_profiles).returncode == 0
    place.ok(BUNDLE)
    done = as_nobody(place, BUNDLE, *with_profiles)
    assert done.returncode == 0 and "nothing to change" in done.stdout
    place.state.unlink()  # all the levels run again, and cannot be recorded
    done = as_nobody(place, BUNDLE, *with_profiles)
    assert done.returncode == 0, done.stderr
    assert "verified to probe" in done.stdout
    assert "not recorded: permission" in done.stdout
