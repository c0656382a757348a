"""The authored root: where it is found, what may be read, and when a lock is stale."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_lock import sample
from unreadable import UNREADABLE, spoil

from fixes import catalogue, lockfile
from fixes.authoring import lockwriter
from fixes.catalogue import Catalogue
from fixes.errors import ExitCode, FixesError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An authored root with the profile ``v1``, and a lock that fits."""
    lock = sample()
    for name in lock.authored:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() + b"\r\n\xff")
    made = Catalogue(tmp_path)
    fitting = {name: made.sha256(name) for name in lock.authored}
    data = lockwriter.dump(lock._replace(authored=fitting))
    (tmp_path / "profiles/v1.lock.json").write_bytes(data)
    return tmp_path


def refused(call, kind: str, code: ExitCode = ExitCode.MISMATCH) -> FixesError:
    with pytest.raises(FixesError) as caught:
        call()
    assert {problem.kind for problem in caught.value.problems} == {kind}
    assert caught.value.exit_code == code
    return caught.value


def test_the_checkout_is_found_by_default():
    found = catalogue.find()
    assert found.root == Path(__file__).parent.parent and not found.zipped


def test_a_named_folder_must_be_a_root(root, tmp_path):
    assert catalogue.find(root).root == root
    (root / "patches").rename(root / "patched")
    error = refused(lambda: catalogue.find(root), "no-profiles", ExitCode.USAGE)
    assert str(root) in str(error)


def test_an_installed_package_has_its_data_inside(root, tmp_path):
    site = tmp_path / "site"
    package = Path(catalogue.__file__).parent
    shutil.copytree(package, site / "fixes", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("profiles", "patches"):
        shutil.copytree(root / name, site / "fixes/data" / name)
    assert ask(site) == f"{site / 'fixes/data'} False ('v1',) two,one,three"


def test_a_zip_file_holds_its_data_too(root, tmp_path):
    package = Path(catalogue.__file__).parent
    archive = tmp_path / "fixes.pyz"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in package.rglob("*.py"):
            packed.write(path, f"fixes/{path.relative_to(package).as_posix()}")
        for path in root.rglob("*"):
            name = path.relative_to(root).as_posix()
            if name.startswith(("profiles/", "patches/")) and path.is_file():
                packed.write(path, f"fixes/data/{name}")
    assert ask(archive) == f"{archive / 'fixes/data'} True ('v1',) two,one,three"


def ask(place: Path) -> str:
    program = (
        "from fixes import catalogue as c; f = c.find(); lock = f.lock('v1');"
        "assert c.package_source('child.py').startswith(b'\"\"\"');"
        "print(f.root, f.zipped, f.profiles(), ','.join(lock.fixes))"
    )
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(place)}, cwd="/", capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_reading_stays_inside(root):
    found = Catalogue(root)
    assert found.read("patches/one/fix.toml") == b"patches/one/fix.toml\r\n\xff"
    for name in ("../x", "/etc/passwd", "patches/../../x", "", "patches//one", "a\0b"):
        with pytest.raises(ValueError):
            found.read(name)
    with pytest.raises(FileNotFoundError):
        found.read("patches/none/fix.toml")


def test_profiles_are_listed_by_release(root):
    for name in ("v1.10.0", "v1.9.0", "v1.9.0rc1"):
        (root / f"profiles/{name}.toml").touch()
    (root / "profiles/README.md").touch()
    assert Catalogue(root).profiles() == ("v1", "v1.9.0", "v1.9.0rc1", "v1.10.0")


def test_profiles_that_cannot_be_listed_are_named(root, monkeypatch):
    """The kernel's answer is a stand-in: the tests may run as root, who lists everything."""

    def refuse(folder):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    for call in (Catalogue(root).profiles, lambda: Catalogue(root).lock("v2")):
        error = refused(call, "unreadable", ExitCode.CANNOT_WRITE)
        assert error.problems[0].where == str(root / "profiles")


def test_a_folder_that_may_not_be_entered_is_no_root(root, monkeypatch):
    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    refused(lambda: catalogue.find(root), "no-profiles", ExitCode.USAGE)


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_no_file_is_not_read(root, what):
    spoil(root / "patches/one/v1.patch", what)
    assert "v1.patch" in str(refused(lambda: Catalogue(root).lock("v1"), "stale-lock"))
    spoil(root / "profiles/v1.lock.json", what)
    refused(lambda: Catalogue(root).lock("v1"), "no-lock")


def test_a_lock_that_fits(root):
    lock = Catalogue(root).lock("v1")
    assert list(lock.fixes) == ["two", "one", "three"]


def test_every_authored_file_that_differs_is_named(root):
    (root / "patches/one/v1.patch").write_bytes(b"other")
    (root / "patches/three/probe.py").unlink()
    (root / "profiles/v1.toml").write_bytes((root / "profiles/v1.toml").read_bytes() + b"\n")
    error = refused(lambda: Catalogue(root).lock("v1"), "stale-lock")
    assert {problem.where.removeprefix(f"{root}/") for problem in error.problems} == {
        "patches/one/v1.patch",
        "patches/three/probe.py",
        "profiles/v1.toml",
    }
    assert all("vllm-fixes lock --profile v1" in problem.hint for problem in error.problems)


def test_a_fix_that_the_lock_uses_must_be_among_the_authored(root):
    path = root / "profiles/v1.lock.json"
    lock = lockfile.load(path.read_bytes(), "x")
    fewer = {n: s for n, s in lock.authored.items() if not n.startswith("patches/three/")}
    path.write_bytes(lockwriter.dump(lock._replace(authored=fewer)))
    error = refused(lambda: Catalogue(root).lock("v1"), "bad-lock")
    assert "patches/three/fix.toml" in str(error)


def test_another_profiles_lock_is_refused(root):
    shutil.copy(root / "profiles/v1.lock.json", root / "profiles/v2.lock.json")
    (root / "profiles/v2.toml").touch()
    assert "profile v1" in str(refused(lambda: Catalogue(root).lock("v2"), "bad-lock"))


def test_no_lock_and_no_profile(root):
    (root / "profiles/v2.toml").touch()
    error = refused(lambda: Catalogue(root).lock("v2"), "no-lock")
    assert "vllm-fixes lock --profile v2" in error.problems[0].hint
    for name in ("v3", "../v1", ""):
        error = refused(
            lambda name=name: Catalogue(root).lock(name), "unknown-profile", ExitCode.USAGE
        )
        assert error.problems[0].hint == "there are: v1, v2"
