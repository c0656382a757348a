"""A plugin without published wheels: pinned from trees, locked by scopes, served by the bundle."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import installs
import places
import pytest
import test_survive_recall
from places import Place
from release import BUNDLE, GAUDI, PROFILE, Release, launch, probe

from fixes import selection

RUNNER = """\
class Base:
    pass


class Runner(Base):
    def keep(self, value):
        return value

    def run(self, batch):
        result = [self.keep(one) for one in batch]
        return result
"""
PLATFORM = "def check(config):\n    config['async'] = True\n    return config\n"
#: Three releases: the second has another layout, the third another `check` and more around it.
TREES = {
    "v1": {"runner.py": RUNNER, "platform.py": PLATFORM},
    "v2": {
        "runner.py": RUNNER.replace("        result", "        # Each of them.\n        result"),
        "platform.py": "# Of v2.\n" + PLATFORM,
    },
    "v3": {
        "runner.py": "import os\n\n\n" + RUNNER + "\n    def more(self):\n        return os\n",
        "platform.py": PLATFORM.replace(
            "def check", "def other():\n    pass\n\n\ndef check"
        ).replace("    return config", "    config['more'] = 1\n    return config"),
    },
}
EDIT = """\
[[edit]]
file = "vllm_gaudi/runner.py"
scope = "Runner.run"
op = "insert-before"
anchor = "return result"
new = "result = pp.pass_on(result)"
relies = ["Runner.keep"]

[[edit]]
file = "vllm_gaudi/runner.py"
op = "add-import"
new = "from vllm_gaudi import pp"

[[edit]]
file = "vllm_gaudi/platform.py"
scope = "check"
op = "insert-after"
anchor = "config['async'] = True"
new = "config['async'] = False"

[[edit]]
file = "vllm_gaudi/pp.py"
op = "add-file"
source = "pp.py"
"""
ABOUT: dict[str, Any] = {
    "id": "gaudi-pp",
    "title": "Pass it on",
    "symptom": "stops",
    "cause": "nothing passes it on",
    "affects": "Gaudi",
    "workaround": "none",
    "log": [],
    "releases": ["0.30.0"],
    "threads": [],
    "targets": ["vllm_gaudi"],
    "risk": "none",
    "drop_when": "upstream passes it on",
}
POINTS = "[vllm.platform_plugins]\nhpu = vllm_gaudi:register\n"


def tree(folder: Path, files: dict[str, str]) -> Path:
    return installs.write(
        folder, {"vllm_gaudi/__init__.py": "", **{f"vllm_gaudi/{k}": v for k, v in files.items()}}
    )


def author(release: Release) -> None:
    """A profile whose bundle serves the plugin."""
    text = (release.root / f"profiles/{PROFILE}.toml").read_text()
    gaudi = GAUDI.replace("fixes = []", 'fixes = ["gaudi-pp"]\nrefuses = { "0.9.0" = "too old" }')
    text = text.replace(GAUDI, gaudi)
    text += '[targets.vllm_gaudi]\npins = true\n[fixes.gaudi-pp]\nsteps = ["edit.toml"]\n'
    release.write(f"profiles/{PROFILE}.toml", text)
    about = "\n".join(f"{key} = {json.dumps(value)}" for key, value in ABOUT.items())
    release.write(
        "patches/gaudi-pp/fix.toml",
        f'{about}\n[probe]\nevidence = "behaviour"\nfinds = "does not work"\n',
    )
    release.write("patches/gaudi-pp/edit.toml", EDIT)
    release.write("patches/gaudi-pp/pp.py", "def pass_on(result):\n    return [*result, 'on']\n")
    good = "vllm_gaudi.runner.Runner().run([1]) == [1, 'on']"
    release.write("patches/gaudi-pp/probe.py", probe(good, "vllm_gaudi.runner"))


def pin(release: Release, *labels: str) -> Any:
    sources: list[str] = []
    for label in labels:
        folder = tree(release.root.parent / f"tree-{label}", TREES[label])
        sources += ["--source", f"{label}={folder}"]
    return launch(sys.executable, "pin", "vllm_gaudi", *sources, "--profiles", release.root)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    made = Release(tmp_path_factory.mktemp("release"))
    author(made)
    assert pin(made, "v1", "v3").returncode == 0
    done = made.lock()
    assert done.returncode == 0, done.stderr
    return made


def installed(
    release: Release, folder: Path, files: dict[str, str], version: str = "0.30.0"
) -> Place:
    place = places.environment(folder / "env", release=release)
    names = {"vllm_gaudi/__init__.py": "", **{f"vllm_gaudi/{k}": v for k, v in files.items()}}
    wheel = installs.wheel(folder, "vllm_gaudi", version, names, POINTS)
    installs.uv_install(place.python or Path(), str(wheel))
    place.pristine = places.snapshot(place.site)
    return place


@pytest.mark.parametrize("label", TREES)
def test_the_bundle_serves_the_plugin_of_every_release_of_the_same_syntax(
    release: Release, tmp_path: Path, label: str
) -> None:
    place = installed(release, tmp_path, TREES[label])
    document = place.json(BUNDLE)
    assert document["exit"] == 0 and document["level"] == "probe", document["problems"]
    assert "gaudi-pp" in [line["id"] for line in document["fixes"]]
    # v2 was never pinned: its bytes are accepted by scope, and that is said.
    accepted = [f"same syntax in vllm_gaudi/{name}," for name in ("platform.py", "runner.py")]
    told = sorted(what.partition(" sha256")[0] for what in document["accepted"])
    assert told == (accepted if label == "v2" else [])
    runner = (place.site / "vllm_gaudi/runner.py").read_text()
    wanted = TREES[label]["runner.py"].replace(
        "        return result", "        result = pp.pass_on(result)\n        return result"
    )
    assert runner.replace("from vllm_gaudi import pp\n", "").strip() == wanted.strip()
    again = place.json(BUNDLE)
    assert again["exit"] == 0 and again["changed"] == []
    assert (again["digest"], again["accepted"]) == (document["digest"], document["accepted"])
    assert again["verification"].endswith("probe was reached before, in this environment")
    assert place.json("verify", BUNDLE)["exit"] == 0
    place.ok("revert", "--all")
    assert place.is_pristine()


def tampered(place: Place, case: str) -> None:
    plugin = place.site / "vllm_gaudi"
    info = next(place.site.glob("vllm_gaudi-*.dist-info"))
    if case == "a fixed file":
        test_survive_recall.append(plugin / "runner.py")
    elif case == "no added file":
        (plugin / "pp.py").unlink()
    elif case == "no state":
        (info / places.STATE).unlink()
    elif case == "RECORD":
        test_survive_recall.append(info / "RECORD", b"x,,\n")
    elif case == "a release that is refused":
        metadata = info / "METADATA"
        metadata.write_text(metadata.read_text().replace("0.30.0", "0.9.0"))
    elif case == "uninstalled":
        shutil.rmtree(plugin)
        shutil.rmtree(info)
    elif case == "another platform":
        installs.write(place.site, {"other-1.dist-info/entry_points.txt": OTHER})


OTHER = "[vllm.platform_plugins]\nnpu = other_platform:register\n"
TAMPERED = {
    "nothing": 0,
    "a fixed file": 1,
    "no added file": 0,
    "no state": 1,  # what is pinned is syntax: there is no hunk to take out again
    "RECORD": 0,
    "a release that is refused": 4,
    "uninstalled": 0,
    "another platform": 1,
}


@pytest.fixture(scope="module")
def applied(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place where the bundle is in, the plugin's part of it too; only copied."""
    place = installed(release, tmp_path_factory.mktemp("applied"), TREES["v1"])
    assert place.json(BUNDLE)["level"] == "probe"
    return place


@pytest.mark.parametrize("case", TAMPERED)
def test_an_earlier_answer_over_two_trees_is_given_only_where_the_whole_run_gives_it(
    applied: Place, tmp_path: Path, case: str
) -> None:
    documents = []
    for way, options in (("recall", {}), ("whole", test_survive_recall.WHOLE)):
        place = test_survive_recall.copied(applied, tmp_path / way)
        tampered(place, case)
        document = place.json(BUNDLE, **options)
        documents.append(json.loads(json.dumps(document).replace(f"/{way}/", "/x/")))
        assert document["exit"] == TAMPERED[case], document["problems"]
    one, other = ({key: each[key] for key in test_survive_recall.TOLD} for each in documents)
    assert one == other


def test_where_no_plugin_is_its_files_are_no_reason_to_plan(
    release: Release, tmp_path: Path
) -> None:
    """The lock has files of a target that is not there; the answer is given again all the same."""
    place = places.environment(tmp_path / "env", release=release)
    assert place.json(BUNDLE)["level"] == "probe"
    unplanned = places.behind("import sys; sys.modules['fixes.plan'] = None")
    document = place.json(BUNDLE, **unplanned)
    assert document["exit"] == 0 and document["changed"] == []


# A state speaks for the files of its own tree


def test_a_file_that_holds_the_fix_is_not_taken_by_its_name(applied: Place, tmp_path: Path) -> None:
    """An anchor alone would fit once more in what is fixed already."""
    place = test_survive_recall.copied(applied, tmp_path / "copy")
    tampered(place, "no state")
    before = places.identities(place.site)
    named = [f"--allow-foreign=vllm_gaudi/{name}.py" for name in ("runner", "platform")]
    document = place.json(BUNDLE, *named)
    assert document["exit"] == 1
    kinds = {problem["kind"] for problem in document["problems"]}
    assert "drifted" in kinds and places.identities(place.site) == before


def test_a_profile_that_does_not_know_the_plugin_sees_what_is_in_it(
    applied: Place, tmp_path: Path
) -> None:
    place = test_survive_recall.copied(applied, tmp_path / "copy")
    place.release = Release(tmp_path)
    before = places.identities(place.site)
    for arguments in (("status",), ("stop",), ("verify",)):
        document = place.json(*arguments)
        kinds = [problem["kind"] for problem in document["problems"]]
        assert document["exit"] == 1 and "not-offered" in kinds, (arguments, kinds)
        assert "vllm_gaudi" in [tree["target"] for tree in document["trees"]]
    assert places.identities(place.site) == before
    assert place.json("revert", "--all")["exit"] == 0
    assert place.is_pristine()


def test_a_plugin_s_state_puts_nothing_into_a_vllm_that_was_installed_again(
    applied: Place, tmp_path: Path
) -> None:
    place = test_survive_recall.copied(applied, tmp_path / "copy")
    place.state.unlink()
    for path, data in place.pristine.items():
        if path.startswith(("vllm/", f"{place.info.name}/")):
            (place.site / path).write_bytes(data)
    (place.package / "added.py").unlink()
    document = place.json("revert", "gaudi-pp")
    assert document["exit"] == 0
    assert document["changed"] and all(p.startswith("vllm_gaudi/") for p in document["changed"])
    assert place.is_pristine()


def test_a_plugin_that_was_uninstalled_is_not_needed_any_more(
    applied: Place, tmp_path: Path
) -> None:
    place = test_survive_recall.copied(applied, tmp_path / "copy")
    tampered(place, "uninstalled")
    for arguments in (("status",), (BUNDLE,), ("verify",), ("revert", "--all")):
        document = place.json(*arguments)
        assert document["exit"] == 0, (arguments, document["problems"])


@pytest.mark.parametrize(
    ("version", "same"),
    [
        *((each, True) for each in ("0.26.0", "0.26", "v0.26.0", "0.26.0.post1", "0.26.0.dev3")),
        *((each, False) for each in ("0.26.1", "0.26.0rc1", "0.27.0", "1", "", "garbage")),
    ],
)
def test_a_release_is_refused_however_it_is_spelled(version: str, same: bool) -> None:
    assert selection._builds(version, "0.26.0") is same


def test_a_pre_release_is_one_of_its_own() -> None:
    assert selection._builds("0.27.0RC0", "0.27.0rc0")
    assert not selection._builds("0.27.0", "0.27.0rc0")
    assert selection._builds("odd", "odd")


CHANGES = {
    "the function": ("runner.py", "return result", "return list(result)", "Runner.run is other"),
    "an anchor doubled": (
        "runner.py",
        "        return result",
        "        if batch:\n            return result\n        return result",
        "Runner.run is other",
    ),
    "what it calls": ("runner.py", "keep(self, value)", "keep(self, value, more)", "signature of"),
    "what it inherits": ("runner.py", "Runner(Base)", "Runner(dict)", "bases of Runner"),
    "gone": ("runner.py", "def run(", "def walk(", "there is no run"),
    "moved": ("runner.py", "class Runner(", "class Walker(", "there is no Runner"),
    "another file": ("platform.py", "True", "None", "check is other code"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_syntax_is_drifted_and_nothing_is_written(
    release: Release, tmp_path: Path, case: str
) -> None:
    file, old, new, fault = CHANGES[case]
    assert old in TREES["v1"][file]
    place = installed(release, tmp_path, {**TREES["v1"], file: TREES["v1"][file].replace(old, new)})
    before = places.identities(place.site)
    document = place.json(BUNDLE)
    assert document["exit"] == 1
    found = [(problem["kind"], problem["what"]) for problem in document["problems"]]
    assert any(kind == "drifted" and fault in what for kind, what in found), found
    assert places.identities(place.site) == before


def test_beside_a_plugin_that_nothing_was_asked_for(release: Release, tmp_path: Path) -> None:
    """The plugin's tree has no state then; the other one's is believed all the same."""
    place = installed(release, tmp_path, TREES["v1"])
    assert place.json("stop")["level"] == "probe"
    again = place.json("stop")
    assert again["exit"] == 0
    assert again["verification"].endswith("probe was reached before, in this environment")


def test_without_the_plugin_it_is_not_needed(release: Release, tmp_path: Path) -> None:
    document = places.environment(tmp_path / "env", release=release).json(BUNDLE)
    assert document["exit"] == 0
    assert ("gaudi", "not-needed") in [(f["id"], f["verdict"]) for f in document["fixes"]]


def test_by_its_name_it_needs_the_plugin(release: Release, tmp_path: Path) -> None:
    document = places.environment(tmp_path / "env", release=release).json("gaudi-pp")
    assert document["exit"] == 3
    assert [problem["kind"] for problem in document["problems"]] == ["target-not-found"]


def test_a_release_that_does_not_go_with_the_core_is_named(
    release: Release, tmp_path: Path
) -> None:
    document = installed(release, tmp_path, TREES["v1"], "0.9.0").json(BUNDLE)
    assert document["exit"] == 4
    assert "vllm_gaudi 0.9.0 does not go with vLLM 0.30.0: too old" in [
        problem["what"] for problem in document["problems"]
    ]


def test_pins_are_made_only_of_trees_that_every_edit_fits(tmp_path: Path) -> None:
    made = Release(tmp_path)
    author(made)
    bad = tree(tmp_path / "bad", {"runner.py": RUNNER.replace("run(", "go("), "platform.py": ""})
    done = launch(
        sys.executable, "pin", "vllm_gaudi", "--source", f"bad={bad}", "--profiles", made.root
    )
    assert done.returncode == 1
    assert "gaudi-pp: edit[0] in bad" in done.stderr and "gaudi-pp: edit[2] in bad" in done.stderr
    assert not (made.root / "profiles/vllm_gaudi.pins.json").exists()
    assert made.lock().returncode == 1  # and there is no lock without pins


def test_a_lock_is_not_made_of_pins_that_are_older_than_the_edits(tmp_path: Path) -> None:
    made = Release(tmp_path)
    author(made)
    assert pin(made, "v1").returncode == 0
    made.write("patches/gaudi-pp/edit.toml", EDIT + "\n# changed\n")
    done = made.lock()
    assert done.returncode == 1 and "stale-pins" in done.stderr
    assert pin(made, "v1").returncode == 0 and made.lock().returncode == 0


def test_what_is_no_source_is_said(release: Release) -> None:
    for source in ("/nowhere", "v1=/nowhere", "=."):
        done = launch(
            sys.executable, "pin", "vllm_gaudi", "--source", source, "--profiles", release.root
        )
        assert done.returncode == 2 and "is no label and a folder" in done.stderr
    folder = release.root.parent / "tree-v1"
    done = launch(
        sys.executable, "pin", "vllm", "--source", f"v1={folder}", "--profiles", release.root
    )
    assert done.returncode == 2
