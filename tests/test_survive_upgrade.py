"""What changes around a fixed tree: newer fixes, another tool, other installs, other layouts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import installs
import places
import pytest
from places import Place
from release import (
    BUNDLE,
    CORE,
    FILES,
    FIXED,
    FIXES,
    LAUNCHER,
    OPEN,
    READY,
    STOP,
    Release,
    environ,
    launch,
)

from fixes.digest import unseal

#: The fixes as a later version of them has them: other bytes, one file less, one file more.
LATER = {
    **FIXES,
    "begin": replace(
        FIXES["begin"],
        files={"v0.30.0.patch": READY.replace("self.ready = True", "self.ready = 1")},
    ),
    "stop": replace(
        FIXES["stop"],
        files={
            "edit.toml": STOP.partition('[[edit]]\nfile = "vllm/added.py"')[0]
            + '[[edit]]\nfile = "vllm/v1/engine/core.py"\nscope = "step"\nop = "replace"\n'
            + 'anchor = "return 1"\nnew = "return 2"\n'
        },
    ),
}


def upgraded(place: Place, tmp_path: Path) -> Release:
    """Later fixes for the same place."""
    place.release = Release(tmp_path / "later", LATER)
    return place.release


def test_newer_fixes_are_applied_to_the_pristine_bytes(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env", "pip")
    first = place.json(BUNDLE)["digest"]
    upgraded(place, tmp_path)
    status = place.json("status")
    assert status["exit"] == 1
    verdicts = {line["id"]: line["verdict"] for line in status["fixes"]}
    assert [verdicts[name] for name in ("begin", "stop", "end")] == ["outdated"] * 2 + ["applied"]
    document = place.json(BUNDLE)
    assert document["exit"] == 0 and document["digest"] != first and document["level"] == "probe"
    fixed = {
        **FIXED,
        "vllm/core.py": FIXED["vllm/core.py"].replace(b"ready = True", b"ready = 1"),
        "vllm/v1/engine/core.py": b"def step():\n    return 2\n",
    }
    del fixed["vllm/added.py"]
    assert {path: (place.site / path).read_bytes() for path in fixed} == fixed
    assert not (place.package / "added.py").exists()
    assert b"added.py" not in (place.info / "RECORD").read_bytes()
    # As if they had been the first.
    other = places.environment(tmp_path / "other", "pip", place.release)
    assert other.json(BUNDLE)["digest"] == document["digest"]
    assert (other.info / "RECORD").read_bytes() == (place.info / "RECORD").read_bytes()
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_newer_fixes_without_a_state_do_not_know_the_older_ones(tmp_path: Path) -> None:
    place = places.unpacked(tmp_path / "tree")
    place.ok(BUNDLE)
    place.state.unlink()
    upgraded(place, tmp_path)
    before = places.snapshot(place.site)
    assert "foreign" in place.fails(1, BUNDLE)
    assert places.snapshot(place.site) == before


def test_a_fix_that_the_profile_dropped(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    place.ok(BUNDLE)
    fewer = {name: fix for name, fix in FIXES.items() if name != "end"}
    place.release = Release(tmp_path / "later", fewer)
    document = place.json(BUNDLE)
    assert document["exit"] == 1
    assert [problem["kind"] for problem in document["problems"]] == ["not-offered"]
    assert "revert --all" in document["problems"][0]["hint"]
    assert place.is_fixed()
    place.ok("revert", "end")
    assert (place.package / "open.py").read_bytes() == OPEN.encode()
    place.ok("begin", "stop")
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_another_version_of_the_tool_answers_for_itself(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    place.ok(BUNDLE)
    later = places.behind("import fixes; fixes.__version__ = '99.0'")
    document = place.json(BUNDLE, **later)
    assert document["exit"] == 0 and document["tool"] == "99.0"


def test_a_lower_level_does_not_forget_a_higher_one(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    place.ok(BUNDLE)
    before = place.state.read_bytes()
    place.ok(BUNDLE, "--verify", "bytes")
    place.ok("end", "--verify", "import")
    assert place.state.read_bytes() == before
    assert unseal(before)["verified"]["level"] == "probe"


def test_apply_and_revert_at_the_same_time(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    verbs = [(BUNDLE,), ("revert", "--all"), ("end",), ("revert", "stop"), (BUNDLE,)] * 2
    runs = [
        subprocess.Popen(
            [place.python or "", LAUNCHER, *verb, "--profiles", place.release.root],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ(),
        )
        for verb in verbs
    ]
    said = [run.communicate(timeout=120) for run in runs]
    assert {run.returncode for run in runs} == {0}, said
    assert place.json("status")["exit"] == 0
    place.ok(BUNDLE)
    assert place.is_fixed()
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_bytecode_in_another_place(tmp_path: Path) -> None:
    """PYTHONPYCACHEPREFIX: what is there is stale as soon as the source is another."""
    place = places.environment(tmp_path / "env")
    env = {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}
    command = [place.python or "", "-c", "import vllm.open; print(vllm.open.end())"]
    soon = os.stat(place.package / "open.py").st_mtime + 10_000
    os.utime(place.package / "open.py", (soon, soon))

    def answer() -> str:
        run = subprocess.run(command, env=environ(**env), cwd="/", capture_output=True, text=True)
        return run.stdout

    assert answer() == "2\n" and list((tmp_path / "cache").rglob("open.*.pyc"))
    place.ok("end", env=env)
    assert answer() == "3\n"
    place.ok("revert", "end", env=env)
    assert answer() == "2\n"


def test_the_interpreter_of_the_verification_is_killed(tmp_path: Path) -> None:
    """Memory runs out: the kernel ends the largest process, which is that one."""
    text = (
        "def probe():\n    import os, signal, vllm.open\n    if vllm.open.end() == 3:\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n    return 1, 'there'\n"
    )
    release = Release(tmp_path / "r", {**FIXES, "end": replace(FIXES["end"], probe=text)})
    place = places.environment(tmp_path / "env", release=release)
    said = place.fails(5, BUNDLE)
    assert f"the interpreter ended with {128 + signal.SIGKILL}" in said
    assert place.is_pristine()


def test_noise_of_imports_does_not_disturb(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    noise = "import sys, os, atexit\nprint('noise'); os.write(1, b'noise'); sys.stdout = None\n"
    noise += "atexit.register(os._exit, 7)\n"
    (place.package / "__init__.py").write_text(noise)
    assert place.json(BUNDLE)["level"] == "probe"
    assert (place.package / "core.py").read_bytes() == FIXED["vllm/core.py"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A source checkout of the release, with a tag as setuptools-scm reads it."""
    folder = installs.sources(tmp_path / "vllm-src")
    installs.write(folder, FILES)
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-qm", "x"), ("tag", "v0.30.0")):
        installs.git(folder, *arguments)
    return folder


def test_an_editable_install(tmp_path: Path, checkout: Path) -> None:
    python = installs.venv(tmp_path / "env", "setuptools")
    installs.uv_install(python, "--no-build-isolation", "-e", str(checkout))
    root = places.standard().root
    before = places.snapshot(checkout / "vllm")
    info = places.snapshot(installs.site(python))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = launch(python, *arguments, "--profiles", root)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    assert "verified to probe" in run(BUNDLE).stdout
    now = places.snapshot(checkout / "vllm")
    assert unseal(now.pop("_fixes_applied.json"))["fixes"] == ["begin", "stop", "end"]
    assert {f"vllm/{path}": data for path, data in now.items() if before.get(path) != data} == FIXED
    assert places.snapshot(installs.site(python)) == info
    again = run(BUNDLE).stdout
    assert "nothing to change" in again and "probe was reached before" in again
    run("status")
    run("revert", "--all")
    assert places.snapshot(checkout / "vllm") == before
    assert places.snapshot(installs.site(python)) == info


def test_a_checkout_is_one_tree_however_it_is_reached(tmp_path: Path, checkout: Path) -> None:
    """Through either of two environments that it is installed in, or by its folder."""
    pythons = [installs.venv(tmp_path / name, "setuptools") for name in ("one", "two")]
    for python in pythons:
        installs.uv_install(python, "--no-build-isolation", "-e", str(checkout))
    where = ("--profiles", places.standard().root)
    tree = ("--tree", checkout, *where)
    ways: list[tuple[Path | str, tuple[str | Path, ...]]]
    ways = [
        (pythons[0], where),
        (pythons[1], where),
        (sys.executable, tree),
    ]
    before = places.snapshot(checkout / "vllm")
    kill = places.behind(
        "import os, signal; from fixes.transaction import Transaction\n"
        "Transaction.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)"
    )
    for number in range(len(ways)):
        (python, one), (other, second), (last, third) = ways[number:] + ways[:number]
        done = launch(python, BUNDLE, "--verify", "bytes", *one, **kill)
        assert done.returncode == -signal.SIGKILL, done.stderr
        for way, options in ways:
            done = launch(way, "status", *options)
            assert done.returncode == 1 and "interrupted" in done.stderr
        done = launch(other, "begin", "--verify", "bytes", *second)
        assert done.returncode == 0 and "rolled back" in done.stdout + done.stderr
        for way, options in ways:
            done = launch(way, "status", "--json", *options)
            assert done.returncode == 0, done.stderr
            told = {fix["id"]: fix["verdict"] for fix in json.loads(done.stdout)["fixes"]}
            assert [name for name in told if "applied" in told[name]] == ["begin"]
        assert list(tmp_path.rglob("*fixes?applied.json")) == [
            checkout / "vllm/_fixes_applied.json"
        ]
        assert launch(last, "revert", "--all", *third).returncode == 0
        assert places.snapshot(checkout / "vllm") == before


def test_a_checkout_before_its_build(checkout: Path) -> None:
    before = places.snapshot(checkout / "vllm")
    where = ("--tree", checkout, "--profiles", places.standard().root)
    done = launch(sys.executable, BUNDLE, *where)
    assert done.returncode == 0, done.stderr
    assert (checkout / "vllm/core.py").read_bytes() == FIXED["vllm/core.py"]
    assert "nothing to change" in launch(sys.executable, BUNDLE, *where).stdout
    done = launch(sys.executable, "revert", "--all", *where)
    assert done.returncode == 0, done.stderr
    assert places.snapshot(checkout / "vllm") == before


def test_a_folder_by_pip_with_a_target(tmp_path: Path) -> None:
    """``--target``: no environment, on PYTHONPATH."""
    target = tmp_path / "target"
    release = places.standard()
    installs.uv(
        "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(release.wheel)
    )
    python = installs.venv(tmp_path / "env")
    env = {"PYTHONPATH": str(target)}
    place = Place(release, python, target)
    for _ in range(2):
        assert "verified to probe" in place.ok(BUNDLE, env=env)
    assert place.is_fixed()
    place.ok("revert", "--all", env=env)
    assert place.is_pristine()


def test_lib64_is_a_link_to_lib(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    lib64 = tmp_path / "env/lib64"
    if not lib64.exists():
        lib64.symlink_to("lib")
    other = str(place.site).replace("/lib/", "/lib64/")
    assert "nothing" not in place.ok(BUNDLE, env={"PYTHONPATH": other})
    assert place.is_fixed()


def test_a_tree_without_a_record(tmp_path: Path) -> None:
    place = places.unpacked(tmp_path / "tree")
    (place.info / "RECORD").unlink()
    place.pristine = places.snapshot(place.site)
    place.ok(BUNDLE)
    assert (place.package / "core.py").read_bytes() == FIXED["vllm/core.py"]
    assert "nothing to change" in place.ok(BUNDLE)
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_files_keep_mode_owner_and_attributes(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    core = place.package / "core.py"
    core.chmod(0o640)
    if os.getuid() == 0:
        os.chown(core, 12, 34)
    os.setxattr(core, "user.note", b"kept")
    before = core.stat()
    place.ok(BUNDLE)
    for _ in range(2):
        now = core.stat()
        assert (now.st_mode, now.st_uid, now.st_gid) == (
            before.st_mode,
            before.st_uid,
            before.st_gid,
        )
        assert os.getxattr(core, "user.note") == b"kept"
        place.ok("revert", "--all")
    assert core.read_bytes() == CORE.encode()
    shutil.rmtree(tmp_path / "env")
