"""Foreign files, plans that are only looked at, and what a lost profile leaves to the state."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import places
import pytest
from places import Place
from release import BUNDLE, CORE, FIXED, FIXES, READY, Release, launch


@pytest.fixture(params=["uv", "pip"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return places.environment(tmp_path / "env", request.param)


FOREIGN = CORE + "\n\nclass Other:\n    def start(self):\n        return 0\n"
TWICE = CORE + "\n\n" + CORE.partition("\n\n\n")[2].partition("\n\n\n")[0] + "\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [(CORE.replace("self.ready = False", "self.ready = None"), "drifted"), (TWICE, "ambiguous")],
)
def test_a_foreign_file_is_refused_and_accepted_only_where_each_hunk_has_one_place(
    tmp_path: Path, text: str, kind: str
) -> None:
    place = places.environment(tmp_path / "env")
    core = place.package / "core.py"
    core.write_text(text)
    before = places.identities(place.site)
    assert place.json("begin")["problems"][0]["kind"] == "foreign"
    document = place.json("begin", "--allow-foreign", "vllm/core.py")
    assert [problem["kind"] for problem in document["problems"]] == [kind]
    assert places.identities(place.site) == before


def test_a_foreign_file_that_is_accepted_is_named_and_given_back(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    core = place.package / "core.py"
    core.write_text("# Ours.\n" + FOREIGN)
    place.pristine["vllm/core.py"] = core.read_bytes()
    document = place.json("begin", "--allow-foreign", "vllm/core.py")
    assert document["exit"] == 0 and document["accepted"][0].startswith("foreign pre-image of")
    (file,) = [file for file in document["files"] if file["path"] == "vllm/core.py"]
    assert file["offsets"] == [1]
    # The state knows it: later runs need not name it, and say so again.
    assert place.json("begin")["accepted"] == document["accepted"]
    assert place.json("end")["accepted"] == document["accepted"]
    assert place.json("status")["exit"] == 0
    place.ok("revert", "--all")
    assert core.read_text() == "# Ours.\n" + FOREIGN


def test_a_file_is_accepted_as_it_was_and_not_as_it_became(tmp_path: Path) -> None:
    """What it became may hold the fix, and the state what it was before."""
    place = places.environment(tmp_path / "env")
    core = place.package / "core.py"
    core.write_text("# Ours.\n" + FOREIGN)
    place.ok("begin", "end", "--allow-foreign", "vllm/core.py")
    fixed = core.read_bytes()
    core.write_bytes(fixed + b"# changed since\n")
    before = places.identities(place.site)
    again = ("--allow-foreign", "vllm/core.py")
    for arguments in (("begin",), ("revert", "--all"), ("revert", "begin"), ("revert", "end")):
        document = place.json(*arguments)
        assert "foreign" in [problem["kind"] for problem in document["problems"]], arguments
        assert place.json(*arguments, *again)["exit"] == 1
    assert places.identities(place.site) == before
    # Another file of somebody's has to be named, the one that was accepted need not.
    core.write_text("# Theirs.\n" + FOREIGN)
    assert place.json("begin")["problems"][0]["kind"] == "foreign"
    core.write_text("# Ours.\n" + FOREIGN)
    place.ok("begin")
    assert core.read_bytes() == fixed
    core.write_text("# Theirs.\n" + FOREIGN)
    place.ok("begin", *again)
    place.ok("revert", "--all")
    assert core.read_text() == "# Theirs.\n" + FOREIGN


def test_a_diff_with_a_wrong_count_never_gets_into_a_lock(tmp_path: Path) -> None:
    release = Release(tmp_path)
    lock = release.root / "profiles/v0.30.0.lock.json"
    before = lock.read_bytes()
    patch = "patches/begin/v0.30.0.patch"
    release.write(patch, READY.replace("@@ -4,4 +4,4 @@", "@@ -4,4 +4,5 @@"))
    done = release.lock()
    assert done.returncode == 1 and patch in done.stderr
    assert lock.read_bytes() == before
    # And what was locked before is refused as long as the patch is not what it was.
    place = places.unpacked(tmp_path / "x", release)
    assert "stale-lock" in place.fails(1, "begin")
    release.write(patch, FIXES["begin"].files["v0.30.0.patch"])
    place.ok("begin")


def test_a_run_that_only_looks_changes_nothing(place: Place) -> None:
    before = places.identities(place.site)
    assert "would change 5 files" in place.ok(BUNDLE, "--dry-run")
    assert place.json(BUNDLE, "--dry-run")["dry_run"] is True
    place.ok("status")
    assert place.run("verify").returncode == 1
    text = place.ok("diff", BUNDLE)
    assert places.identities(place.site) == before
    _check_diff(place, text)


def _check_diff(place: Place, text: str) -> None:
    """What ``diff`` prints, git applies, and it makes the fixed files."""
    folder = place.site.parent / "by-git"
    shutil.copytree(place.package, folder / "vllm")
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git")
    (folder / "x.diff").write_bytes(text.encode())
    subprocess.run([git, "apply", "--whitespace=nowarn", "x.diff"], cwd=folder, check=True)
    assert all((folder / path).read_bytes() == data for path, data in FIXED.items())


def test_a_digest_that_is_expected(place: Place) -> None:
    before = places.identities(place.site)
    planned: str = place.json(BUNDLE, "--dry-run")["digest"]
    for wrong in ("0" * 64, f"sha256:{'0' * 64}", planned[:12]):
        document = place.json(BUNDLE, "--expect-digest", wrong)
        assert document["exit"] == 10 and document["problems"][0]["kind"] == "digest"
    assert places.identities(place.site) == before
    place.ok(BUNDLE, "--expect-digest", planned)
    for right in (planned, f"sha256:{planned}"):
        place.ok(BUNDLE, "--expect-digest", right)
    assert place.json(BUNDLE, "--expect-digest", "0" * 64)["exit"] == 10
    assert place.json("verify", "--expect-digest", "0" * 64)["exit"] == 10
    assert place.is_fixed()


REVERTED: dict[str, Callable[[Path], object]] = {
    "a profile that knows the fix no more": lambda root: _forget(root),
    "no lock": lambda root: (root / "profiles/v0.30.0.lock.json").unlink(),
    "a stale lock": lambda root: (root / "patches/begin/probe.py").unlink(),
    "a damaged lock": lambda root: (root / "profiles/v0.30.0.lock.json").write_text("{"),
    "no profile": lambda root: (root / "profiles/v0.30.0.toml").unlink(),
}


def _forget(root: Path) -> None:
    path = root / "profiles/v0.30.0.lock.json"
    lock = json.loads(path.read_text())
    del lock["fixes"]["end"]
    del lock["files"]["vllm/open.py"]
    lock["bundles"] = {}
    path.write_text(json.dumps(lock))


@pytest.mark.parametrize("case", REVERTED)
def test_all_fixes_are_taken_out_by_the_state_alone(tmp_path: Path, case: str) -> None:
    place = places.environment(tmp_path / "env")
    place.ok(BUNDLE)
    root = shutil.copytree(place.release.root, tmp_path / "root")
    REVERTED[case](root)
    other = launch(place.python or "", "begin", "--profiles", root)
    assert other.returncode in (1, 4), other.stdout + other.stderr
    assert place.is_fixed()
    done = launch(place.python or "", "revert", "--all", "--profiles", root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [word in done.stdout for word in ("reverted", " begin", " stop", " end")] == [True] * 4
    assert place.is_pristine()


def test_status_gives_the_digest_of_what_is_in_the_tree(tmp_path: Path) -> None:
    """A fixed file was put back by hand: what the state says would be another digest."""
    place = places.environment(tmp_path / "env")
    stock = place.json("status")["digest"]
    place.ok("end")
    assert place.json("status")["digest"] != stock
    (place.package / "open.py").write_bytes(place.pristine["vllm/open.py"])
    document = place.json("status")
    assert document["exit"] == 1 and document["digest"] == stock
