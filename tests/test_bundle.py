"""The bundle: one file that runs anywhere, with the bytes that it has everywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import places
import pytest
import release as small
import yaml
from places import Place, by_uv
from release import BUNDLE, CHECKOUT, FIXED, LAUNCHER, launch

from fixes import catalogue
from fixes.verbs import FROM_A_CHECKOUT, VERBS

PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-9]*/bin/python"))
#: What a ConfigMap may hold: `ValidateConfigMap` of Kubernetes adds up the values' bytes.
CONFIG_MAP = 1 << 20


def make(to: Path, *arguments: str | Path, launcher: Path = LAUNCHER, **options: object) -> Path:
    done = launch(sys.executable, "bundle", "--to", to, *arguments, launcher=launcher, **options)
    assert done.returncode == 0, done.stderr
    return to


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is offered, from this checkout."""
    return make(tmp_path_factory.mktemp("whole") / "vllm-fixes.pyz")


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small release's profile."""
    path = tmp_path_factory.mktemp("small") / "vllm-fixes.pyz"
    return make(path, "--profiles", places.standard().root)


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """The same checkout at two places, written in another order, at another time and umask."""
    made = []
    for number, umask in enumerate((0o022, 0o077)):
        folder = tmp_path_factory.mktemp(f"checkout-{number}")
        before = os.umask(umask)
        try:
            for name in ("patches", "profiles", "fixes")[:: 1 - 2 * number]:
                for path in (CHECKOUT / name).rglob("*"):
                    if path.is_file() and "__pycache__" not in path.parts:
                        copy = folder / path.relative_to(CHECKOUT)
                        copy.parent.mkdir(parents=True, exist_ok=True)
                        copy.write_bytes(path.read_bytes())
                        os.utime(copy, (number * 10**9, number * 10**9))
            for name in ("LICENSE", "NOTICE"):
                shutil.copy(CHECKOUT / name, folder)
        finally:
            os.umask(before)
        made.append(folder)
    yield made
    for folder in made:
        shutil.rmtree(folder)


def test_it_is_the_same_to_the_byte_wherever_it_is_made(
    checkouts: list[Path], whole: Path, tmp_path: Path
) -> None:
    wanted = hashlib.sha256(whole.read_bytes()).hexdigest()
    assert len(PYTHONS) > 1, "made by one Python alone"
    for number, python in enumerate((PYTHONS[0], PYTHONS[-1])):
        to = tmp_path / f"{number}.pyz"
        launcher = checkouts[number] / "fixes/apply_all.py"
        zone = {"TZ": ("Asia/Kolkata", "UTC")[number], "PYTHONHASHSEED": str(number)}
        done = launch(python, "bundle", "--json", "--to", to, launcher=launcher, env=zone)
        document = json.loads(done.stdout)
        assert document["sha256"] == hashlib.sha256(to.read_bytes()).hexdigest() == wanted
        assert document["bytes"] == to.stat().st_size
        assert tuple(document["profiles"]) == catalogue.find().profiles()


def test_it_holds_the_running_half_and_what_the_locks_name(whole: Path) -> None:
    root = catalogue.find()
    authored = {name for one in root.profiles() for name in root.lock(one).authored}
    authored |= {catalogue.lock_name(one) for one in root.profiles()}
    with zipfile.ZipFile(whole) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        data = {name.removeprefix("fixes/data/") for name in names if "/data/" in name}
        for name in names:
            origin = CHECKOUT / name.replace("fixes/data/", "")
            assert name == "__main__.py" or archive.read(name) == origin.read_bytes()
    abouts = {path.relative_to(CHECKOUT).as_posix() for path in CHECKOUT.glob("patches/*/fix.toml")}
    assert data == authored | abouts
    left_out = ("fixes/authoring/", "fixes/manifest/", "fixes/parity/")
    assert not [name for name in names if name.startswith(left_out)]


def test_it_fits_into_a_config_map_with_room(whole: Path) -> None:
    """Kubernetes counts before base64; the request, a third more, has limits of its own."""
    assert whole.stat().st_size < CONFIG_MAP
    encoded = {"vllm-fixes.pyz": base64.b64encode(whole.read_bytes()).decode()}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "vllm-fixes"}}
    assert len(json.dumps({**document, "binaryData": encoded})) < 1.5 * CONFIG_MAP


def test_the_manifest_mounts_what_is_made(tmp_path: Path) -> None:
    manifest = (CHECKOUT / "kubernetes/zipapp.yaml").read_text("utf-8")
    document = (CHECKOUT / "docs/bundle-and-wheel.md").read_text("utf-8")
    (pod,) = yaml.safe_load_all(manifest)
    (container,) = pod["spec"]["containers"]
    (volume,) = [one for one in pod["spec"]["volumes"] if "configMap" in one]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
    name = volume["configMap"]["name"]
    assert mount["readOnly"] and f"create configmap {name} --from-file" in manifest
    assert f"create configmap {name} --from-file=vllm-fixes.pyz" in document
    script = container["command"][-1]
    assert f"python3 {mount['mountPath']}/vllm-fixes.pyz --profile v0.30.0 {BUNDLE}" in script
    assert subprocess.run(["sh", "-n", "-c", script]).returncode == 0
    path = f"{mount['mountPath']}/vllm-fixes.pyz"
    assert container["command"][:2] == ["sh", "-ec"] and f"\ntest -s {path}\n" in script
    # What Python says of an empty file is what the script must not believe.
    (tmp_path / "vllm-fixes.pyz").touch()
    script = script.replace(mount["mountPath"], str(tmp_path)).replace("exec vllm", "echo vllm")
    assert subprocess.run([sys.executable, tmp_path / "vllm-fixes.pyz"]).returncode == 0
    done = subprocess.run(["sh", "-ec", script], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_every_python_runs_it(zipapp: Path, tmp_path: Path, python: Path) -> None:
    """Without site-packages, variables, the user's folder, and any other program."""
    place = places.unpacked(tmp_path / "tree")
    there = ("--tree", place.site)
    isolated = {"launcher": zipapp, "flags": ("-I", "-S"), "env": {"PATH": "/nowhere"}}
    first = launch(python, "apply", BUNDLE, *there, **isolated)
    assert first.returncode == 0, first.stderr
    assert place.is_fixed()
    for arguments in ((BUNDLE,), ("status",), ("verify", BUNDLE)):
        done = launch(python, *arguments, *there, **isolated)
        assert done.returncode == 0 and done.stderr == ""
        assert done.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert "+++ b/vllm/v1/worker.py" in launch(python, "diff", "work", *there, **isolated).stdout
    assert launch(python, "revert", "--all", *there, **isolated).returncode == 0
    assert place.is_pristine()


def test_an_old_python_gets_a_sentence(zipapp: Path) -> None:
    old = Path("~/.pyenv/versions/3.6.15/bin/python").expanduser()
    if not old.exists():
        pytest.skip("no Python 3.6 here")
    done = launch(old, "--version", launcher=zipapp)
    assert done.returncode == 2 and "needs Python 3.10 or newer, this is 3.6" in done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return places.environment(tmp_path / "env")


def test_it_says_what_a_checkout_says(place: Place, zipapp: Path) -> None:
    """Every verb, to the last level, relative to the working directory and through a link."""
    folder = zipapp.parent
    (folder / "linked.pyz").unlink(missing_ok=True)
    (folder / "linked.pyz").symlink_to(zipapp.name)

    def both(*arguments: str, code: int = 0, name: str = zipapp.name) -> dict[str, object]:
        root = ("--profiles", place.release.root)
        checkout = launch(place.python, *arguments, *root, "--json")
        done = launch(place.python, *arguments, "--json", launcher=Path(name), cwd=folder)
        assert (done.returncode, done.stderr) == (code, ""), done.stderr
        assert checkout.returncode == code
        found, wanted = json.loads(done.stdout), json.loads(checkout.stdout)
        for key in ("digest", "level", "files", "profiles", "fixes", "trees"):
            assert found.get(key) == wanted.get(key), key
        return dict(found)

    both("verify", BUNDLE, code=1)
    both("nothing", code=2)
    both("end", "--profile", "v1", code=2)
    first = launch(place.python, BUNDLE, "--json", launcher=zipapp)
    assert json.loads(first.stdout)["level"] == "probe", first.stdout
    assert "probe was reached before" in str(both(BUNDLE)["verification"])
    both(BUNDLE, name="linked.pyz")
    both("status")
    both("verify")
    both("list")
    both("show", "stop")
    both(BUNDLE, "--expect-digest", "sha256:" + 64 * "0", code=10)
    (place.package / "open.py").write_text("# foreign\n")
    both(BUNDLE, code=1)


def test_it_verifies_another_environment(place: Place, zipapp: Path) -> None:
    for python in PYTHONS[-1:]:
        done = launch(python, BUNDLE, "--python", place.python or "", "--json", launcher=zipapp)
        assert done.returncode == 0, done.stdout
        assert json.loads(done.stdout)["level"] == "probe"
    assert place.is_fixed()


def test_verbs_that_it_has_not_are_named(whole: Path) -> None:
    overview = launch(sys.executable, "--help", launcher=whole).stdout
    for verb in VERBS:
        done = launch(sys.executable, verb, "--help", launcher=whole)
        there = verb not in FROM_A_CHECKOUT
        assert (f"\n  {verb} " in overview) is there
        assert done.returncode == (0 if there else 2), done.stderr
        assert there or done.stderr.startswith(f"usage: {verb}: is not in this bundle\n")
    flags = ("-I", "-S")  # no third-party package, whatever is installed
    done = launch(sys.executable, "wheel", "vllm==0", "x", "--to", "/", launcher=whole, flags=flags)
    assert done.returncode == 2 and "needs a checkout with '.[maintain]'" in done.stderr
    assert "give the wheel's file" in done.stderr and "authoring" not in done.stderr


def test_chosen_profiles_only(tmp_path: Path) -> None:
    path = make(tmp_path / "one.pyz", "--profile", "v0.30.0", "--profile", "v0.30.0")
    done = launch(sys.executable, "list", "--json", launcher=path)
    assert [one["profile"] for one in json.loads(done.stdout)["profiles"]] == ["v0.30.0"]
    done = launch(sys.executable, "list", "--profile", "v0.31.0", launcher=path)
    assert done.returncode == 2 and "there are: v0.30.0" in done.stderr


def test_a_stale_lock_is_refused(tmp_path: Path) -> None:
    made = small.Release(tmp_path)
    made.write("patches/begin/fix.toml", "# another text\n")
    to = tmp_path / "x.pyz"
    done = launch(sys.executable, "bundle", "--to", to, "--profiles", made.root)
    assert done.returncode == 1 and "stale-lock" in done.stderr
    assert not list(tmp_path.glob("*.pyz*")) and not list(tmp_path.glob(".*"))


def test_it_starts_by_its_first_line(tmp_path: Path, zipapp: Path) -> None:
    done = subprocess.run([zipapp, "--version"], capture_output=True)
    assert done.returncode == 0
    path = make(tmp_path / "x.pyz", "--python", sys.executable, "--profile", "v0.30.0")
    assert path.read_bytes().startswith(f"#!{sys.executable}\n".encode())
    assert subprocess.run([path, "--version"], capture_output=True).returncode == 0


WRONG = {
    "no such profile": (("--profile", "v1"), 2, "no profile 'v1'"),
    "a first line of two": (("--python", "a\nb"), 2, "no interpreter for a first line"),
    "a return": (("--python", "/bin/python3\r"), 2, "no interpreter for a first line"),
    "too many bytes": (("--python", "/" + 61 * "\u00e4"), 2, "no interpreter for a first line"),
    "no profiles": (("--profiles", "/"), 2, "does not hold the folders"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be(tmp_path: Path, case: str) -> None:
    arguments, code, what = WRONG[case]
    done = launch(sys.executable, "bundle", "--to", tmp_path / "x.pyz", *arguments)
    assert done.returncode == code and what in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_no_bundle_is_not_replaced(tmp_path: Path, zipapp: Path) -> None:
    profile = ("--profiles", places.standard().root)
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    done = launch(sys.executable, "bundle", "--to", path, *profile)
    assert done.returncode == 2 and "is there and is no bundle" in done.stderr
    assert path.read_text() == "mine"
    make(path, "--force", *profile)
    make(path, *profile)
    assert path.read_bytes() == zipapp.read_bytes()
    done = launch(sys.executable, "bundle", "--to", tmp_path, "--force", *profile)
    assert done.returncode == 2 and "is a folder" in done.stderr
    done = launch(sys.executable, "bundle", "--to", tmp_path / "none/x.pyz", *profile)
    assert done.returncode == 2 and "no such folder" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_pipe_is_not_waited_for(tmp_path: Path, force: tuple[str, ...]) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    profile = ("--profiles", places.standard().root)
    done = launch(sys.executable, "bundle", "--to", path, *profile, *force, timeout=60)
    assert done.returncode == 2 and "is no regular file" in done.stderr
    assert path.is_fifo()


# Damaged, or replaced


def bad(done: subprocess.CompletedProcess[str], path: Path) -> None:
    said = f"bad-bundle: {path}: is damaged, or was replaced while it ran\n    bring it again\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.parametrize("name", ["fixes/cli.py", "fixes/plan.py", "fixes/apply_all.py"])
def test_a_byte_of_it_is_another(zipapp: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(zipapp) as archive:
        item = archive.getinfo(name)
    path, data = tmp_path / "x.pyz", bytearray(zipapp.read_bytes())
    for place in (item.header_offset, item.header_offset + 60, item.header_offset + 400):
        data[place] ^= 1
        path.write_bytes(data)
        bad(launch(sys.executable, BUNDLE, launcher=path), path)
        data[place] ^= 1
    path.write_bytes(data[: len(data) // 2])  # Python takes it for no zip file
    assert launch(sys.executable, BUNDLE, launcher=path).returncode == 1


REPLACING = """
import runpy, sys
path = sys.argv[1]
sys.argv[:] = [path, *sys.argv[2:]]
import argparse
real = argparse.ArgumentParser.parse_intermixed_args
def replaced(*arguments):
    with open(path, "r+b") as stream:
        {change}
    return real(*arguments)
argparse.ArgumentParser.parse_intermixed_args = replaced
runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.parametrize(
    "change",
    ["stream.truncate(5000)", "stream.write(bytes(2 * stream.seek(0, 2)))", "stream.truncate(0)"],
)
def test_it_is_replaced_while_it_runs(zipapp: Path, tmp_path: Path, change: str) -> None:
    path = tmp_path / "x.pyz"
    path.write_bytes(zipapp.read_bytes())
    place = places.unpacked(tmp_path / "tree")
    start = ("-c", REPLACING.format(change=change), path, BUNDLE, "--tree", place.site)
    done = subprocess.run([sys.executable, *start], capture_output=True, text=True)
    assert done.returncode == 1 and "bring it again" in done.stderr, done.stderr
    assert "bad-bundle: " in done.stderr and "Traceback" not in done.stderr
    assert place.is_pristine()


def test_no_space_leaves_what_was_there(zipapp: Path) -> None:
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full here")
    limit = ["bash", "-c", 'ulimit -f 8; trap "" XFSZ; exec "$@"', "bash"]
    path = zipapp.with_name("kept.pyz")
    path.write_bytes(zipapp.read_bytes())
    done = launch(sys.executable, "bundle", "--to", path, before=limit)
    assert done.returncode == 6 and "Traceback" not in done.stderr, done.stderr
    assert path.read_bytes() == zipapp.read_bytes()
    assert not list(path.parent.glob(".*"))


def test_an_installed_package_makes_the_same(tmp_path: Path, whole: Path) -> None:
    """By what a wheel of this project holds, laid out as installed."""
    site = tmp_path / "site"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "fixes", site / "fixes", ignore=skip)
    for name in ("patches", "profiles"):
        shutil.copytree(CHECKOUT / name, site / "fixes/data" / name, ignore=skip)
    licences = site / "vllm_fixes-0.1.0.dist-info/licenses"
    licences.mkdir(parents=True)
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(CHECKOUT / name, licences)
    made = make(tmp_path / "x.pyz", launcher=site / "fixes/apply_all.py")
    assert made.read_bytes() == whole.read_bytes()


def test_fixed_files_are_those_of_the_release(zipapp: Path, tmp_path: Path) -> None:
    place = by_uv(tmp_path / "env")
    assert launch(place.python or "", BUNDLE, launcher=zipapp).returncode == 0
    assert {path: (place.site / path).read_bytes() for path in FIXED} == FIXED
