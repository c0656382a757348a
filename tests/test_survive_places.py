"""Where the tool runs and what it finds there: copies, platforms, versions, odd surroundings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import installs
import places
import pytest
from places import Place
from release import BUNDLE, CHECKOUT, CORE, FILES, FIXED, PROFILE, environ, launch


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return places.environment(tmp_path / "env")


def refused(place: Place, code: int, *kinds: str, **options: object) -> list[dict[str, str]]:
    """A run of the bundle that is refused with these kinds of problems, and changes nothing."""
    before = places.identities(place.site)
    arguments = options.pop("arguments", (BUNDLE,))
    document = place.json(*arguments, **options)  # type: ignore[misc]
    assert document["exit"] == code, document
    assert [problem["kind"] for problem in document["problems"]] == list(kinds)
    assert places.identities(place.site) == before
    problems: list[dict[str, str]] = document["problems"]
    return problems


def test_a_second_copy_on_pythonpath(place: Place, tmp_path: Path) -> None:
    other = installs.write(tmp_path / "other", FILES)
    (problem,) = refused(place, 3, "found-twice", env={"PYTHONPATH": str(other)})
    assert str(other / "vllm") in problem["what"] and str(place.package) in problem["what"]


def test_a_second_copy_in_the_working_directory(place: Place, tmp_path: Path) -> None:
    other = installs.write(tmp_path / "other", FILES)
    (problem,) = refused(place, 3, "found-twice", cwd=other)
    assert str(other / "vllm") in problem["what"] and str(place.package) in problem["what"]
    place.ok(BUNDLE, "--tree", place.site, cwd=other)  # the one that is meant, by its folder


def test_both_copies_are_named_where_there_are_two(place: Place, tmp_path: Path) -> None:
    by_path = installs.write(tmp_path / "path", FILES)
    here = installs.write(tmp_path / "here", FILES)
    done = place.run(BUNDLE, cwd=here, env={"PYTHONPATH": str(by_path)})
    assert done.returncode == 3
    for copy in (by_path, place.site):
        assert str(copy / "vllm") in done.stderr


def test_a_folder_that_is_no_package_is_no_copy(place: Place, tmp_path: Path) -> None:
    (tmp_path / "here/vllm/notes").mkdir(parents=True)
    place.ok(BUNDLE, cwd=tmp_path / "here")
    assert place.is_fixed()


def test_relative_parts_of_pythonpath(place: Place, tmp_path: Path) -> None:
    here = installs.write(tmp_path / "here", FILES)
    refused(place, 3, "found-twice", cwd=here, env={"PYTHONPATH": "."})
    place.ok(BUNDLE, cwd=tmp_path, env={"PYTHONPATH": "."})


def test_no_vllm_at_all(tmp_path: Path) -> None:
    installs.uv("venv", "--quiet", "--no-project", "--python", sys.executable, str(tmp_path / "e"))
    done = launch(tmp_path / "e/bin/python", BUNDLE, "--profile", PROFILE)
    assert done.returncode == 3 and "imports no vllm" in done.stderr
    done = launch(sys.executable, BUNDLE, "--tree", tmp_path / "nowhere")
    assert done.returncode == 3 and "is no folder" in done.stderr


def test_another_interpreter(place: Place) -> None:
    done = launch(
        sys.executable, BUNDLE, "--profiles", place.release.root, "--python", place.python or ""
    )
    assert done.returncode == 0, done.stderr
    assert place.is_fixed() and "verified to probe" in done.stdout
    assert "nothing to change" in place.ok(BUNDLE)


def other_version(place: Place, version: str) -> None:
    for path in (place.info / "METADATA", place.package / "_version.py"):
        path.write_text(path.read_text().replace("0.30.0", version))


def test_another_release(place: Place) -> None:
    other_version(place, "0.29.0")
    (problem,) = refused(place, 4, "wrong-version", arguments=(BUNDLE, "--profile", PROFILE))
    assert "vLLM 0.29.0 is installed, profile v0.30.0 is for 0.30.0" in problem["what"]
    (problem,) = refused(place, 4, "wrong-version")
    assert "no profile for vLLM 0.29.0" in problem["what"] and PROFILE in problem["hint"]


@pytest.mark.parametrize("version", ["0.30.0+cpu", "0.30.0+empty"])
def test_a_local_build_of_the_release_is_that_release(place: Place, version: str) -> None:
    other_version(place, version)
    place.ok(BUNDLE)
    place.ok(BUNDLE, "--profile", PROFILE)


def test_a_version_that_is_accepted_by_name(place: Place) -> None:
    other_version(place, "0.30.1.dev3+gabc")
    profile = ("--profile", PROFILE)
    refused(place, 4, "wrong-version", arguments=(BUNDLE, *profile, "--accept-version", "0.30.1"))
    accept = ("--accept-version", "0.30.1.dev3+gabc")
    document = place.json(BUNDLE, *profile, *accept)
    assert document["exit"] == 0 and document["level"] == "probe"
    assert document["accepted"] == ["version 0.30.1.dev3+gabc for profile v0.30.0"]
    assert place.json(BUNDLE, *profile, *accept)["accepted"] == document["accepted"]
    refused(place, 4, "wrong-version", arguments=(BUNDLE, *profile))


def test_the_gaudi_plugin_without_fixes_for_it(place: Place, tmp_path: Path) -> None:
    points = "[vllm.platform_plugins]\nhpu = vllm_gaudi:register\n"
    wheel = installs.wheel(tmp_path, "vllm_gaudi", "0.30.0", {"vllm_gaudi/__init__.py": ""}, points)
    installs.uv_install(place.python or Path(), str(wheel))
    (problem,) = refused(place, 1, "not-offered")
    assert "no fixes for vllm_gaudi yet: nothing to add yet" in problem["what"]
    place.ok("begin")  # by its name it is wanted, whatever else is there


def test_the_vendor_is_there_and_its_plugin_is_not(place: Place) -> None:
    installs.write(place.site, {"habana_frameworks/torch/__init__.py": ""})
    (problem,) = refused(place, 3, "target-not-found")
    assert "habana_frameworks shows gaudi, but vllm_gaudi is not installed" in problem["what"]


def test_a_platform_plugin_that_nobody_knows(place: Place, tmp_path: Path) -> None:
    points = "[vllm.platform_plugins]\nnew = new_vllm.plugin:register\n"
    wheel = installs.wheel(tmp_path, "new_plugin", "1.0", {"new_vllm/__init__.py": ""}, points)
    installs.uv_install(place.python or Path(), str(wheel))
    (problem,) = refused(place, 1, "not-offered")
    assert "platform plugin new_vllm of new-plugin" in problem["what"]
    place.ok("begin", "stop", "end")


def test_several_problems_are_all_said_and_the_first_decides(place: Place) -> None:
    (place.package / "core.py").write_text("# foreign\n")
    (place.package / "open.py").unlink()
    wrong = (BUNDLE, "--expect-digest", "0" * 64)
    refused(place, 1, "foreign", "missing", "digest", arguments=wrong)
    installs.write(place.site, {"habana_frameworks/x.py": ""})
    refused(place, 3, "target-not-found", "foreign", "missing", "digest", arguments=wrong)


def test_a_copy_and_a_wrong_version_at_once(place: Place, tmp_path: Path) -> None:
    other_version(place, "0.29.0")
    here = installs.write(tmp_path / "here", FILES)
    for profile in (PROFILE, "auto"):
        arguments = (BUNDLE, "--profile", profile)
        refused(place, 3, "found-twice", "wrong-version", arguments=arguments, cwd=here)


def test_a_wrong_digest_for_a_tree_that_may_not_be_written(place: Place, tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("needs root")
    done = subprocess.run(["mount", "--bind", place.site, place.site], capture_output=True)
    if done.returncode:
        pytest.skip("mount is refused")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place.site], check=True)
        wrong = (BUNDLE, "--expect-digest", "0" * 64)
        problems = refused(place, 10, "digest", "read-only", arguments=wrong)
        assert "build the fixes into the image" in problems[1]["hint"]
        place.ok(BUNDLE, "--dry-run")
    finally:
        subprocess.run(["umount", "-l", place.site], check=True)


def gone(tmp_path: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run something in a working directory that has been deleted."""
    folder = tmp_path / "gone"
    folder.mkdir()
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    return subprocess.run(
        ["sh", "-c", script, folder, *command], capture_output=True, text=True, env=environ()
    )


def test_a_working_directory_that_has_been_deleted(place: Place, tmp_path: Path) -> None:
    command = (place.python or "", CHECKOUT / "apply_all.py", BUNDLE)
    done = gone(tmp_path, *command, "--profiles", place.release.root)
    assert done.returncode == 0, done.stderr
    assert place.is_fixed()


def test_a_relative_tree_in_a_working_directory_that_has_been_deleted(tmp_path: Path) -> None:
    done = gone(tmp_path, sys.executable, CHECKOUT / "apply_all.py", BUNDLE, "--tree", "x")
    assert done.returncode == 3 and "Traceback" not in done.stderr


@pytest.mark.parametrize("first", ["apply_all.py", "fixes/apply_all.py"])
def test_the_launchers_from_anywhere(tmp_path: Path, first: str) -> None:
    """A checkout that is itself called fixes; by its path, from inside, and through a link."""
    checkout = tmp_path / "src/fixes"
    shutil.copytree(CHECKOUT / "fixes", checkout / "fixes")
    shutil.copy(CHECKOUT / "apply_all.py", checkout)
    link = tmp_path / "link"
    link.symlink_to(checkout / first)
    linked = tmp_path / "linked"
    linked.symlink_to(checkout)
    starts = [
        (checkout / first, "/"),
        (Path(first), checkout),
        (Path("fixes", first), checkout.parent),
        (Path(first).name, (checkout / first).parent),
        (link, tmp_path),
        (linked / first, "/"),
    ]
    for number, (launcher, cwd) in enumerate(starts):
        place = places.unpacked(tmp_path / f"tree-{number}")
        place.ok(BUNDLE, launcher=Path(launcher), cwd=cwd)
        assert place.is_fixed()


def test_a_module_of_the_package_never_shadows_the_standard_library(tmp_path: Path) -> None:
    """``profile`` is a module of the standard library, and a word of ours."""
    shutil.copytree(CHECKOUT / "fixes", tmp_path / "fixes")
    for name in ("profile", "json", "argparse"):
        (tmp_path / f"fixes/{name}.py").write_text("raise ImportError('ours')\n")
    place = places.unpacked(tmp_path / "tree")
    place.ok(BUNDLE, launcher=tmp_path / "fixes/apply_all.py")


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "POSIX", "LANG": ""},
    ],
)
def test_a_plain_locale_and_a_path_that_is_not(tmp_path: Path, env: dict[str, str]) -> None:
    place = places.environment(tmp_path / "größe 世界")
    output = place.ok(BUNDLE, env=env)
    assert "vllm 0.30.0" in output and place.is_fixed()
    place.ok(BUNDLE, env=env)
    assert place.json("status", env=env)["exit"] == 0
    assert place.ok("diff", "work", env=env)
    place.ok("revert", "--all", env=env)
    assert place.is_pristine()


def test_a_path_that_is_no_text(tmp_path: Path) -> None:
    place = places.unpacked(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    place.ok(BUNDLE)
    assert place.is_fixed()
    assert place.json(BUNDLE)["exit"] == 0
    place.ok("revert", "--all")


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONSAFEPATH": "1"},
        {"PYTHONDONTWRITEBYTECODE": "1"},
        {"PYTHONWARNINGS": "error"},
        {"PYTHONDEVMODE": "1"},
        {"PYTHONOPTIMIZE": "2"},
        {"TMPDIR": "/nowhere"},
        {"COLUMNS": "20"},
    ],
    ids=lambda env: "".join(env),
)
def test_settings_of_the_surroundings(tmp_path: Path, env: dict[str, str]) -> None:
    place = places.environment(tmp_path / "env", "pip")
    done = place.run(BUNDLE, env=env)
    assert done.returncode == 0 and done.stderr == "" and place.is_fixed()
    assert "reached before" in place.ok(BUNDLE, env=env)
    place.ok("revert", "--all", env=env)
    assert place.is_pristine()


def test_a_package_that_is_a_link(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env", "pip")
    shutil.move(place.package, tmp_path / "elsewhere")
    place.package.symlink_to(tmp_path / "elsewhere")
    place.ok(BUNDLE)
    assert (tmp_path / "elsewhere/core.py").read_bytes() == FIXED["vllm/core.py"]
    assert "reached before" in place.ok(BUNDLE)
    place.ok("revert", "--all")
    assert (tmp_path / "elsewhere/core.py").read_text() == CORE


def test_as_a_module_and_from_inside_site_packages(place: Place) -> None:
    place.ok(BUNDLE, cwd=place.site)
    command = [place.python or "", "-m", "fixes", BUNDLE, "--profiles", place.release.root]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, env=environ())
    assert done.returncode == 0 and "reached before" in done.stdout, done.stderr


def test_no_home_and_an_empty_environment(place: Place) -> None:
    command = [place.python or "", CHECKOUT / "apply_all.py", BUNDLE]
    done = subprocess.run(
        [*command, "--profiles", place.release.root], env={}, cwd="/", capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert place.is_fixed()


OTHERS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-9]*/bin/python"))


@pytest.mark.parametrize("python", OTHERS, ids=lambda path: path.parts[-3])
def test_every_python_that_vllm_runs_on(tmp_path: Path, python: Path) -> None:
    place = places.by_uv(tmp_path / "env", python=str(python))
    assert "verified to probe" in place.ok(BUNDLE)
    assert place.is_fixed() and "nothing to change" in place.ok(BUNDLE)
    place.ok("verify")
    place.ok("revert", "--all")
    assert place.is_pristine()


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.7.16", "3.8.18", "3.9.18"])
def test_an_old_python_says_what_to_do(version: str) -> None:
    python = Path(f"~/.pyenv/versions/{version}/bin/python").expanduser()
    if not python.exists():
        pytest.skip(f"no Python {version}")
    for launcher in (CHECKOUT / "apply_all.py", CHECKOUT / "fixes/apply_all.py"):
        done = launch(python, BUNDLE, launcher=launcher)
        if version.startswith("2"):
            assert done.returncode != 0  # all that is promised is no traceback from 3.6 on
            continue
        assert done.returncode == 2, done.stderr
        assert "needs Python 3.10 or newer" in done.stderr and "--python" in done.stderr
