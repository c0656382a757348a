"""The main line on the files of the published wheels, which lack their compiled extensions.

Every test starts on a pristine tree, and has to leave it so, to the last byte and name.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cache
import installs
import places
import pytest
from places import STATE
from real import DISTRIBUTIONS, RELEASES, Copy, Profile
from release import BUNDLE
from test_survive_apply import WATCH

pytestmark = pytest.mark.wheels

Copies = dict[tuple[str, str], Copy]


@pytest.fixture(scope="module")
def copies() -> Iterator[Copies]:
    made: Copies = {}
    yield made
    for copy in made.values():
        shutil.rmtree(copy.site)


@pytest.fixture(params=[f"{name} {release}" for release in RELEASES for name in DISTRIBUTIONS])
def copy(
    request: pytest.FixtureRequest, copies: Copies, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Copy]:
    """A copy of one wheel's files, made anew only if a test spoilt it."""
    name, release = request.param.split()
    pristine = cache.tree(name, release)
    key = name, release
    if key not in copies:
        site = tmp_path_factory.mktemp(f"{name}-{release}") / "site"
        shutil.copytree(pristine, site)
        copies[key] = Copy(release, site, where=("--tree", site))
    yield copies[key]
    if left := _content(Copy(release, pristine)).items() ^ copies[key].content().items():
        del copies[key]
        pytest.fail(f"not as before: {sorted({path for path, _ in left})}")


_content = functools.cache(Copy.content)


@pytest.fixture
def profile(copy: Copy) -> Profile:
    return Profile(copy.release)


def verdicts(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {fix["id"]: (fix["verdict"], fix["detail"]) for fix in document["fixes"]}


VERBS = ((BUNDLE,), ("status",), ("verify",), ("revert", "--all"))


def spoilt(
    copy: Copy, code: int, kind: str, path: str, verbs: tuple[tuple[str, ...], ...] = VERBS
) -> None:
    """Every verb says what is wrong with a file, and none changes anything."""
    before = places.identities(copy.site)
    for arguments in verbs:
        document = copy.json(*arguments)
        told = {(problem["kind"], problem["where"]) for problem in document["problems"]}
        assert document["exit"] == code and (kind, path) in told, (arguments, document["problems"])
    assert places.identities(copy.site) == before


def test_the_main_line(copy: Copy, profile: Profile) -> None:
    pristine = copy.content()
    first = copy.json(BUNDLE, "--dry-run")
    assert verdicts(first) == profile.verdicts("pending")
    assert first["exit"] == 0 and copy.content() == pristine

    done = copy.json(BUNDLE, "--profile", f"v{copy.release}", "--expect-digest", first["digest"])
    assert verdicts(done) == profile.verdicts("applied")
    assert (done["exit"], done["level"], done["problems"]) == (0, "bytes", [])
    assert done["digest"] == first["digest"] and done["changed"] == first["changed"]
    assert {file["verdict"] for file in done["files"]} == {"pristine"}

    info = copy.info.name
    now = copy.content()
    changed = {path for path, _ in now.items() ^ pristine.items()}
    assert changed == {*done["changed"], f"{info}/RECORD", f"{info}/{STATE}"}
    wanted = {file["path"]: file["wanted"] for file in done["files"]}
    assert {path: wanted[path] for path in done["changed"]} == {
        path: now[path][2] for path in done["changed"]
    }
    assert not copy.wrong_in_record(done["changed"])
    for path in done["changed"]:
        compile((copy.site / path).read_bytes(), path, "exec")

    status = copy.json("status")
    assert profile.verdicts("applied", platforms=False).items() <= verdicts(status).items()
    assert (status["exit"], status["level"], status["digest"]) == (0, "bytes", done["digest"])
    copy.ok("revert", "--all")


def test_the_words_of_every_report(copy: Copy, profile: Profile) -> None:
    head = f"vllm {copy.release} ({copy.info.name.partition('-')[0].replace('_', '-')}, unpacked)"
    count = len(copy.json(BUNDLE, "--dry-run")["changed"])

    def said(output: str, verdict: str, *rest: str) -> None:
        lines = output.splitlines()
        assert lines[0].endswith(f"profile v{copy.release}") and lines[1].startswith(head)
        fixes = [line.split()[1] for line in lines if line.startswith(f"  {verdict} ")]
        assert [fix for fix in fixes if fix in profile.offered] == profile.offered
        for text in rest:
            assert text in output
        assert lines[-1].startswith("digest sha256:")

    said(copy.ok("status"), "pending")
    said(copy.ok(BUNDLE), "applied", f"changed {count} files: ", f"bytes: {count} files hashed")
    said(copy.ok(BUNDLE), "already-applied", "nothing to change", "RECORD agrees")
    said(copy.ok("status"), "applied", f"verified to bytes: {count} files hashed")
    said(copy.ok("verify", "--verify", "bytes"), "applied", f"{count} files hashed, RECORD agrees")
    assert copy.ok("verify", "--quiet").splitlines()[-1] == copy.ok("status").splitlines()[-1]
    said(copy.ok("revert", "--all"), "reverted", f"changed {count} files: ")
    assert "no fix is in this tree" in copy.fails(1, "verify")


@pytest.mark.parametrize("release", RELEASES)
def test_the_digest_is_that_of_the_release_whatever_the_distribution(release: str) -> None:
    digests = {
        Copy(release, tree, where=("--tree", tree)).json(BUNDLE, "--dry-run")["digest"]
        for tree in (cache.tree(name, release) for name in DISTRIBUTIONS)
    }
    assert len(digests) == 1 and all(digests)


def test_a_second_run_opens_nothing_for_writing(copy: Copy) -> None:
    copy.ok(BUNDLE)
    before = places.identities(copy.site)
    for arguments in ((BUNDLE,), ("--profile", f"v{copy.release}", BUNDLE), ("status",)):
        done = copy.run(*arguments, **WATCH)
        assert done.returncode == 0 and "seen: []" in done.stderr, done.stderr
    assert places.identities(copy.site) == before
    copy.ok("revert", "--all")


def test_fixes_one_by_one_in_any_order_are_the_bundle(copy: Copy, profile: Profile) -> None:
    paths = copy.json(BUNDLE)["changed"]
    wanted = copy.read(paths)
    copy.ok("revert", "--all")
    for order in (profile.offered, profile.offered[::-1]):
        for name in order:
            fixes = {fix["id"]: fix["verdict"] for fix in copy.json(name)["fixes"]}
            assert fixes.pop(name) == "applied" and set(fixes.values()) <= {"already-applied"}
        assert copy.read(paths) == wanted and not copy.wrong_in_record(paths)
        assert "nothing to change" in copy.ok(BUNDLE)
        copy.ok("revert", "--all")


def test_without_one_fix_is_all_the_others(copy: Copy, profile: Profile) -> None:
    paths = copy.json(BUNDLE)["changed"]
    for name in profile.offered:
        digest = copy.json("revert", name)["digest"]
        without = copy.read(paths)
        copy.ok("revert", "--all")
        done = copy.json(*(other for other in profile.offered if other != name))
        assert copy.read(paths) == without and done["digest"] == digest
        copy.ok(name)
    copy.ok("revert", *profile.offered)


def test_a_flipped_byte_in_any_fixed_file(copy: Copy) -> None:
    paths = copy.json(BUNDLE)["changed"]
    for path, data in copy.read(paths).items():
        middle = len(data) // 2
        flipped = bytes([data[middle] ^ 1])
        (copy.site / path).write_bytes(data[:middle] + flipped + data[middle + 1 :])
        spoilt(copy, 1, "foreign", path, VERBS if path == paths[0] else VERBS[:1])
        (copy.site / path).write_bytes(data)
    assert "nothing to change" in copy.ok(BUNDLE)
    copy.ok("revert", "--all")


def test_a_fixed_file_that_is_missing(copy: Copy) -> None:
    path = copy.json(BUNDLE)["changed"][0]
    aside = copy.site.parent / "aside"
    (copy.site / path).rename(aside)
    spoilt(copy, 1, "missing", path)
    aside.rename(copy.site / path)
    copy.ok("revert", "--all")


def test_a_pristine_tree_that_lacks_a_file_or_has_another(copy: Copy) -> None:
    path = copy.json(BUNDLE, "--dry-run")["changed"][0]
    (data,) = copy.read([path]).values()
    for bad, kind in ((None, "missing"), (data + b"\n", "foreign")):
        if bad is None:
            (copy.site / path).unlink()
        else:
            (copy.site / path).write_bytes(bad)
        before = places.identities(copy.site)
        (problem,) = copy.json(BUNDLE)["problems"]
        assert (problem["kind"], problem["where"]) == (kind, path)
        assert places.identities(copy.site) == before
    (copy.site / path).write_bytes(data)


def test_what_was_written_down_is_lost_or_damaged(copy: Copy) -> None:
    done = copy.json(BUNDLE)
    path = done["changed"][0]
    state, record = copy.info / STATE, copy.info / "RECORD"
    lines = record.read_bytes()
    inodes = {name: (copy.site / name).stat().st_ino for name in done["changed"]}
    assert lines.count(f"\n{path},sha256=".encode()) == 1
    other = lines.replace(f"{path},sha256=".encode(), f"{path},sha256=0".encode())
    for file, data, kinds in (
        (state, None, set()),
        (state, state.read_bytes()[:-9], {"damaged-state"}),
        (record, other, {"record"}),
    ):
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)
        assert {problem["kind"] for problem in copy.json("status")["problems"]} == kinds
        again = copy.json(BUNDLE)
        assert (again["exit"], again["digest"], again["changed"]) == (0, done["digest"], [])
        assert state.exists() and not copy.wrong_in_record(done["changed"])
        assert copy.json("status")["exit"] == 0
    assert inodes == {name: (copy.site / name).stat().st_ino for name in done["changed"]}
    copy.ok("revert", "--all")


def test_an_interpreter_without_any_packages(copy: Copy) -> None:
    bare = {"flags": ("-S", "-I", "-B")}
    digest = copy.json(BUNDLE, **bare)["digest"]
    assert digest == copy.json(BUNDLE)["digest"] != ""
    copy.ok("revert", "--all", **bare)


def test_files_that_no_fix_touches_are_no_matter(copy: Copy) -> None:
    others = ["vllm/logger.py", "vllm/envs.py", "vllm/v1/outputs.py"]
    kept = copy.read(others)
    listed = (copy.info / "RECORD").read_text("utf-8").splitlines()
    extensions = [line.split(",")[0] for line in listed if ".so," in line]
    assert extensions and not any((copy.site / path).exists() for path in extensions)
    (copy.site / others[0]).unlink()
    (copy.site / others[1]).write_bytes(b"# somebody's own\n")
    before = copy.content()
    assert copy.json(BUNDLE)["exit"] == copy.json("verify")["exit"] == 0
    copy.ok("revert", "--all")
    assert copy.content() == before
    for path, data in kept.items():
        (copy.site / path).write_bytes(data)


def test_the_profile_of_another_release(copy: Copy) -> None:
    (other,) = set(RELEASES) - {copy.release}
    said = copy.fails(4, BUNDLE, "--profile", f"v{other}")
    assert f"vLLM {copy.release} is installed, profile v{other} is for {other}" in said
    assert "Nothing was changed." in said


def test_git_makes_the_same_of_what_diff_prints(copy: Copy, tmp_path: Path) -> None:
    paths = copy.json(BUNDLE, "--dry-run")["changed"]
    pristine = copy.read(paths)
    patch = tmp_path / "all.patch"
    patch.write_bytes(copy.ok("diff", BUNDLE).encode())
    by_git = tmp_path / "git"
    for path, data in pristine.items():
        (by_git / path).parent.mkdir(parents=True, exist_ok=True)
        (by_git / path).write_bytes(data)
    installs.git(by_git, "apply", str(patch))
    copy.ok(BUNDLE)
    assert {path: (by_git / path).read_bytes() for path in paths} == copy.read(paths)
    assert copy.ok("diff", BUNDLE) == ""
    installs.git(by_git, "apply", "--reverse", str(patch))
    copy.ok("revert", "--all")
    assert {path: (by_git / path).read_bytes() for path in paths} == pristine
