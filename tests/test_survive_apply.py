"""Applying, applying again and taking back, on files of every kind and by every installer."""

from __future__ import annotations

import os
import py_compile
import subprocess
from itertools import permutations
from pathlib import Path

import installs
import places
import pytest
from places import Place
from release import BUNDLE, CORE, CRLF, FIXED, environ

#: Names every event that could write, lock or start something, at the end of the run.
WATCH = places.behind(
    """
import atexit, os
seen = []
NAMES = ("fcntl.flock", "os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir",
    "os.utime", "os.chmod", "os.chown", "os.setxattr", "os.truncate", "subprocess.Popen", "os.fork")
def hook(event, arguments):
    flags = arguments[2] if event == "open" else 0
    if event in NAMES or isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        seen.append((event, str(arguments[0])))
sys.addaudithook(hook)
atexit.register(lambda: print("seen:", seen, file=sys.stderr))
"""
)


@pytest.fixture(params=["uv", "pip"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return places.environment(tmp_path / "env", request.param)


def digest(output: str) -> str:
    return output.rstrip().rpartition("sha256:")[2]


def test_a_first_run_fixes_and_proves_and_a_revert_gives_every_byte_back(place: Place) -> None:
    output = place.ok(BUNDLE)
    assert place.is_fixed()
    assert "verified to probe: 5 files hashed, RECORD agrees" in output
    assert "3 of 3 probes passed" in output
    assert (place.info / "RECORD").read_bytes() != place.pristine[f"{place.info.name}/RECORD"]
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_record_lists_the_state_and_agrees_with_every_file(place: Place) -> None:
    place.ok(BUNDLE)
    text = (place.info / "RECORD").read_bytes()
    pip = b"\r\n" in place.pristine[f"{place.info.name}/RECORD"]
    assert (text.count(b"\n") == text.count(b"\r\n")) is pip
    import base64
    import csv
    import hashlib

    rows = {row[0]: row[1:] for row in csv.reader(text.decode().splitlines())}
    assert rows[f"{place.info.name}/{places.STATE}"] == ["", ""]
    for path in FIXED:
        data = (place.site / path).read_bytes()
        told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert rows[path] == [f"sha256={told}", str(len(data))]


def test_an_uninstall_takes_everything_along(tmp_path: Path) -> None:
    place = places.by_uv(tmp_path / "env")
    place.ok(BUNDLE)
    installs.uv("pip", "uninstall", "--quiet", "--python", str(place.python), "vllm")
    assert not place.package.exists() and not place.info.exists()


def test_an_uninstall_by_pip_does_so_too(tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "env", "pip")
    installs.pip_install(python, str(places.standard().wheel))
    place = Place(places.standard(), python, installs.site(python))
    place.ok(BUNDLE)
    command = [str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "vllm"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ(), cwd="/")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert not place.package.exists() and not place.info.exists()


def test_an_upgrade_brings_a_tree_that_is_fixed_anew(tmp_path: Path) -> None:
    place = places.by_uv(tmp_path / "env")
    first = digest(place.ok(BUNDLE))
    installs.uv_install(place.python or Path(), "--reinstall", str(place.release.wheel))
    assert place.is_pristine()
    assert digest(place.ok(BUNDLE)) == first and place.is_fixed()


def test_a_second_run_writes_nothing_takes_no_lock_and_starts_nothing(place: Place) -> None:
    place.ok(BUNDLE)
    before = places.identities(place.site)
    watch = {**WATCH, "env": {"PYTHONDONTWRITEBYTECODE": "1"}}  # the checkout's own
    for arguments in ((BUNDLE,), ("--verify", "bytes", BUNDLE), ("--quiet", BUNDLE)):
        done = place.run(*arguments, **watch)
        assert done.returncode == 0 and "seen: []" in done.stderr, done.stderr
    # Another question about the same tree needs the whole run, and no more than that.
    for arguments in (("end", "begin"), ("status",), (BUNDLE, "--dry-run"), ("diff", BUNDLE)):
        done = place.run(*arguments, **watch)
        assert done.returncode == 0 and "seen: []" in done.stderr, done.stderr
    assert places.identities(place.site) == before


def test_the_watch_sees_a_first_run(tmp_path: Path) -> None:
    done = places.environment(tmp_path / "env").run(BUNDLE, **WATCH)
    for event in ("fcntl.flock", "os.rename", "open", "subprocess.Popen"):
        assert f"('{event}'" in done.stderr


def test_a_third_run_adds_one_more_fix(place: Place) -> None:
    first = digest(place.ok("begin"))
    second = place.ok("end")
    assert "already-applied  begin" in second and "applied          end" in second
    assert digest(second) != first
    together = digest(place.ok("begin", "end"))
    assert together == digest(second)
    # What shares a file with it is no less applied already.
    for third in (place.ok("stop", "--dry-run"), place.ok("stop")):
        assert "already-applied  begin" in third and "already-applied  end" in third
    assert "applied          begin" in place.ok("revert", "stop", "--dry-run")


def test_the_order_of_fixes_does_not_matter(tmp_path: Path) -> None:
    names = ("begin", "stop", "end")
    seen = set()
    for number, order in enumerate(permutations(names)):
        place = places.unpacked(tmp_path / str(number))
        for name in order if number % 2 else ():
            place.ok(name)
        seen.add(digest(place.ok(*order)))
        assert place.is_fixed()
    place = places.unpacked(tmp_path / "bundle")
    assert seen == {digest(place.ok(BUNDLE))}


def test_a_requirement_comes_along_and_does_not_go_alone(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    document = place.json("work")
    assert [line["id"] for line in document["fixes"]] == ["begin", "work"]
    assert place.json("revert", "begin")["problems"][0]["kind"] == "conflict"
    place.ok("revert", "work", "begin")
    assert place.is_pristine()


def test_all_fixes_at_once_are_proven(place: Place) -> None:
    """One fix's name is reached through a module that another one changes."""
    assert "4 of 4 probes passed" in place.ok(BUNDLE, "work")


def test_reverting_one_fix_is_the_others_alone(place: Place) -> None:
    place.ok(BUNDLE)
    output = place.ok("revert", "stop")
    assert "reverted         stop" in output
    assert not (place.package / "added.py").exists()
    assert (place.package / "crlf.py").read_bytes() == CRLF.encode()
    again = place.ok("begin", "end")
    assert digest(again) == digest(output)
    place.ok("stop")
    assert place.is_fixed()
    for name in ("begin", "end", "stop"):
        place.ok("revert", name)
    assert place.is_pristine()


def test_a_bundle_that_loses_a_part_is_told(place: Place) -> None:
    place.ok(BUNDLE)
    assert f"{BUNDLE} is not whole without end" in place.json("revert", "end")["notes"]
    assert place.json("revert", "stop")["notes"] == []  # it was not whole before
    place.ok(BUNDLE)
    assert place.json("revert", BUNDLE)["notes"] == []  # nothing of it is left


def test_reverting_what_is_not_in_changes_nothing(tmp_path: Path) -> None:
    place = places.unpacked(tmp_path / "x")
    before = places.identities(place.site)
    assert "nothing to change" in place.ok("revert", "--all")
    assert "nothing to change" in place.ok("revert", "end")
    assert places.identities(place.site) == before


def test_fixed_files_without_a_state_are_recognised_and_recorded_again(place: Place) -> None:
    first = digest(place.ok(BUNDLE))
    place.state.unlink()
    before = {path: (place.site / path).stat().st_ino for path in FIXED}
    assert digest(place.ok(BUNDLE)) == first
    assert before == {path: (place.site / path).stat().st_ino for path in FIXED}
    assert place.state.exists()
    place.state.unlink()
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_files_that_were_copied_over_another_install_are_recognised(tmp_path: Path) -> None:
    """A layer with the fixed files and nothing else; RECORD still has the old hashes."""
    place = places.environment(tmp_path / "env")
    for path, data in FIXED.items():
        (place.site / path).write_bytes(data)
    output = place.ok(BUNDLE)
    assert "nothing to change" in output and "probes passed" in output
    assert place.json("status")["exit"] == 0
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_a_cpu_build_has_a_pre_image_of_its_own(tmp_path: Path) -> None:
    place = places.unpacked(tmp_path / "x", cpu=True)
    place.ok(BUNDLE)
    fixed = b"# For a CPU.\n" + FIXED["vllm/core.py"]
    assert (place.package / "core.py").read_bytes() == fixed
    place.ok("revert", "--all")
    assert place.is_pristine()


@pytest.mark.parametrize("mode", ["hardlink", "symlink"])
def test_a_file_shared_with_the_cache_of_uv_is_never_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    place = places.by_uv(tmp_path / "env", "--link-mode", mode)
    core = place.package / "core.py"
    linked = core.is_symlink() if mode == "symlink" else core.stat().st_nlink == 2
    assert linked, f"uv does not {mode} here"
    cache = places.snapshot(tmp_path / "cache")
    inodes = {p: p.stat().st_ino for p in (tmp_path / "cache").rglob("*")}
    place.ok(BUNDLE)
    assert place.is_fixed() and not core.is_symlink() and core.stat().st_nlink == 1
    other = places.by_uv(tmp_path / "other", "--link-mode", mode)
    assert other.is_pristine() and (other.package / "core.py").read_bytes() == CORE.encode()
    place.ok("revert", "--all")
    assert place.is_pristine()
    assert {p: p.stat().st_ino for p in inodes} == inodes
    assert {p: d for p, d in places.snapshot(tmp_path / "cache").items() if p in cache} == cache


STALE = {
    "by time and size": py_compile.PycInvalidationMode.TIMESTAMP,
    "never checked": py_compile.PycInvalidationMode.UNCHECKED_HASH,
    "by hash": py_compile.PycInvalidationMode.CHECKED_HASH,
}


@pytest.mark.parametrize("mode", STALE)
@pytest.mark.parametrize("dont_write", ["", "1"])
def test_no_bytecode_outlives_its_source(tmp_path: Path, mode: str, dont_write: str) -> None:
    """open.py keeps its size when it is fixed, and here its second as well."""
    place = places.environment(tmp_path / "env")
    source = place.package / "open.py"
    assert source.stat().st_size == len(FIXED["vllm/open.py"])
    soon = os.stat(source).st_mtime + 10_000  # the fixed file would have this second
    os.utime(source, (soon, soon))
    stale = [
        py_compile.compile(str(source), invalidation_mode=STALE[mode], optimize=level)
        for level in (-1, 1, 2)
    ]
    env = {"PYTHONDONTWRITEBYTECODE": dont_write} if dont_write else {}
    document = place.json("end", env=env)
    assert document["exit"] == 0 and document["level"] == "probe"
    kept = [path for path in stale if os.path.exists(str(path))]
    assert len(kept) == (0 if mode == "never checked" else 3)
    for flags in ((), ("-O",), ("-OO",)):
        done = subprocess.run(
            [place.python or "", *flags, "-c", "import vllm.open; print(vllm.open.end())"],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
            cwd="/",
        )
        assert done.stdout == "3\n", done.stderr
    place.ok("revert", "end")
    assert source.read_bytes() == place.pristine["vllm/open.py"]
