"""Trials, mutants and proofs on small packages; on vLLM itself they run in test_fixes.py."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fixes import syntax
from fixes.authoring import proof, trials
from fixes.authoring.mutants import mutants
from fixes.catalogue import Catalogue
from fixes.child import ABSENT, CANNOT_TELL, PRESENT
from fixes.edits import Edit
from fixes.errors import FixesError
from fixes.hunks import Hunk
from fixes.lock import Bundle, FileChange, Fix, Lock, Need, PinnedFile, Probe, Step

CORE = b"""\
import library


def start():
    return "asleep"


class Engine:
    def stop(self):
        return "running"
"""
AWAKE = CORE.replace(b"asleep", b"awake!")
STOPPED = CORE.replace(
    b'        return "running"\n',
    b'        return self._stopped()\n\n    def _stopped(self):\n        return "stopped"\n',
)
START = """
def probe():
    from package.core import start
    return int(start() != "awake!"), start()
"""
STOP = """
def probe():
    from package.core import Engine
    return int(Engine().stop() != "stopped"), "stops?"
"""


def make_tree(folder: Path, core: bytes = CORE) -> Path:
    (folder / "package").mkdir(parents=True)
    (folder / "package/__init__.py").write_bytes(b"")
    (folder / "package/core.py").write_bytes(core)
    return folder


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree, and beside it a library that writes a line whenever it is imported."""
    log = tmp_path / "imports"
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries/library.py").write_text(f"open({str(log)!r}, 'a').write('once ')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libraries"))
    return make_tree(tmp_path / "tree")


def ask(tree: Path, *probes: str, **options: float) -> list[trials.Answer]:
    """What each probe says, all asked about one tree."""
    named = {f"p{number}": source for number, source in enumerate(probes)}
    trial = trials.Trial(str(tree), "group", ("package.core",), tuple(named))
    sources = {name: source.encode() for name, source in named.items()}
    (found,) = trials.run(sys.executable, [trial], sources, ["package"], **options)  # type: ignore[arg-type]
    assert list(found) == list(named)
    return list(found.values())


def body(*lines: str) -> str:
    return "import os, sys, time\ndef probe():\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("source", "code", "reason"),
    [
        (START, PRESENT, "asleep"),
        (body("return 0, 'fine'"), ABSENT, "fine"),
        (body("return 77, 'no-gpu: none'"), CANNOT_TELL, "no-gpu: none"),
        (body("return 2, 'two'"), None, "the probe gave 2"),
        (body("return 1 / 0"), None, "the probe broke: ZeroDivisionError"),
        (body("sys.exit(0)"), None, "the probe broke: SystemExit"),
        (body("os._exit(0)"), None, "the probe's process died"),
        (body("os.abort()"), None, "the probe's process died"),
        (body("time.sleep(60)"), None, "no answer within 1 s"),
        (body("print('{}' * 99999)", "os.write(1, b'{}')", "return 0, ''"), ABSENT, ""),
    ],
)
def test_what_a_probe_can_do(tree, source, code, reason):
    began = time.monotonic()
    answers = ask(tree, source, START, probe_s=1)
    assert answers[0].code == code and answers[0].reason.startswith(reason)
    assert (answers[1].code, answers[1].reason) == (PRESENT, "asleep")
    assert answers[0].seconds < 10 and time.monotonic() - began < 20


def test_a_process_that_a_probe_leaves_is_ended(tree, tmp_path):
    place = tmp_path / "process"
    leaves = body(
        "child = os.fork()",
        f"child or (open({str(place)!r}, 'w').write(str(os.getpid())), time.sleep(60))",
        f"while not os.path.exists({str(place)!r}) or not open({str(place)!r}).read(): pass",
        "return 0, 'leaves one'",
    )
    (answer,) = ask(tree, leaves)
    assert answer.code == ABSENT and answer.seconds < 9
    process, deadline = int(place.read_text()), time.monotonic() + 5
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(process, 0)
            time.sleep(0.05)
        pytest.fail("still there")


def test_a_probe_does_not_disturb_the_next(tree, tmp_path):
    make_tree(tmp_path / "other", AWAKE)
    other = str(tmp_path / "other")
    disturbs = body(
        f"sys.path.insert(0, {other!r})",
        "import package.core",
        "package.core.start = None",
        "del sys.modules['package.core'], sys.modules['package']",
        "os.environ['DISTURBED'] = '1'",
        "os.chdir('/tmp')",
        "return 0, 'disturbed'",
    )
    undisturbed = body(
        f"assert {other!r} not in sys.path",
        "assert 'DISTURBED' not in os.environ and os.getcwd() == '/'",
        "import package.core",
        "return 0, package.core.start()",
    )
    assert [answer.reason for answer in ask(tree, disturbs, undisturbed)] == ["disturbed", "asleep"]


def test_trees_share_libraries_but_never_code(tree, tmp_path):
    """Sources of one size and one time differ in what they do."""
    trees = [tree, make_tree(tmp_path / "awake", AWAKE), make_tree(tmp_path / "again")]
    for folder in trees:
        os.utime(folder / "package/core.py", (1, 1))
    tried = [trials.Trial(str(each), "group", ("package.core",), ("start",)) for each in trees]
    answers = trials.run(sys.executable, tried, {"start": START.encode()}, ["package"], jobs=2)
    assert [answer["start"].reason for answer in answers] == ["asleep", "awake!", "asleep"]
    assert (tmp_path / "imports").read_text() == "once once "  # to learn of it, and to share it
    assert not list(tree.rglob("*.pyc"))


def test_a_module_that_no_tree_can_import_is_left_to_the_probes(tree):
    (tree / "package/core.py").write_bytes(b"import nowhere\n")
    one, two = ask(tree, body("return 0, 'needs it not'"), START)
    assert one.code == ABSENT
    assert two.reason.startswith("the probe broke: ModuleNotFoundError")


def test_a_module_that_only_one_tree_cannot_import_is_its_fault(tree, tmp_path):
    broken = make_tree(tmp_path / "broken", CORE + b"raise SystemExit(3)\n")
    tried = [
        trials.Trial(str(each), "group", ("package.core",), ("start",)) for each in (tree, broken)
    ]
    good, bad = trials.run(sys.executable, tried, {"start": START.encode()}, ["package"])
    assert good["start"].code == PRESENT
    assert bad["start"].code is None
    assert bad["start"].reason == "package.core cannot be imported: SystemExit: 3"


def test_imports_that_take_too_long(tree, tmp_path):
    slow = make_tree(tmp_path / "slow", CORE + b"import time\ntime.sleep(60)\n")
    dead = make_tree(tmp_path / "dead", CORE + b"import os\nos._exit(9)\n")
    tried = [
        trials.Trial(str(each), "group", ("package.core",), ("start",))
        for each in (tree, slow, dead)
    ]
    sources = {"start": START.encode()}
    _, *bad = trials.run(sys.executable, tried, sources, ["package"], import_s=2)
    assert [each["start"].reason for each in bad] == [
        "the imports took longer than 2 s",
        "the process ended with 9",
    ]


def test_a_library_that_brings_a_target_in(tree, tmp_path):
    make_tree(tmp_path / "libraries")
    (tmp_path / "libraries/library.py").write_text("import package\n")
    with pytest.raises(FixesError, match="package comes with a library"):
        ask(tree, START)


def test_an_interpreter_that_is_none(tree):
    trial = trials.Trial(str(tree), "group", (), ("start",))
    for python in ("/nowhere/python", "/bin/false"):
        with pytest.raises(FixesError, match="no-answer"):
            trials.run(python, [trial], {"start": START.encode()}, ["package"])


def test_mutants_of_functions():
    found = mutants(CORE, STOPPED.replace(b"asleep", b"awake!"))
    assert set(found) == {"start", "Engine.stop", "Engine._stopped"}

    def says(mutant: bytes) -> tuple[object, object]:
        space: dict[str, object] = {}
        exec(mutant.replace(b"import library", b""), space)
        return space["start"](), space["Engine"]().stop()  # type: ignore[operator]

    assert says(found["start"]) == ("asleep", "stopped")
    assert says(found["Engine.stop"]) == ("awake!", "running")
    assert says(found["Engine._stopped"]) == ("awake!", None)


def test_mutants_of_a_new_file_and_of_what_is_no_function():
    source = (
        b"LIMIT = 1\n\nclass Watch:\n    seconds = 2\n\n    async def wait(self):\n        pass\n"
    )
    (mutant,) = mutants(None, source).values()
    assert mutant.count(b"    async def wait(") == 2
    assert mutants(source, source.replace(b"= 1", b"= 3").replace(b"= 2", b"= 3")) == {}


def test_a_mutant_never_takes_a_new_branch_of_the_module():
    pre = b"if ready:\n    act(1)\n"
    post = b"if ready:\n    if (new or\n        newer):\n        pass\n    else:\n        act(1)\n"
    expected = post.replace(b"new or\n        newer", b"False")
    assert mutants(pre, post) == {"if new or newer": expected}


def test_no_mutant_of_a_function_that_is_in_two_places():
    source = b"if a:\n    def f():\n        return 1\nelse:\n    def f():\n        return 2\n"
    with pytest.raises(syntax.ScopeError, match="defined at lines 2, 5"):
        mutants(source, source.replace(b"2", b"3"))


def test_an_overlay_is_the_base_but_for_some_files(tree, tmp_path):
    (tree / "package/data").mkdir()
    (tree / "package/data/one.json").write_bytes(b"1")
    (tree / "package/__pycache__").mkdir()
    before = {path: path.lstat() for path in tree.rglob("*")}
    images = {"package/core.py": AWAKE, "package/__init__.py": None, "package/new/x.py": b"new"}
    proof.overlay(tree, tmp_path / "made", images)
    made = tmp_path / "made/package"
    assert {path.name for path in made.iterdir()} == {"core.py", "data", "new"}
    assert (made / "core.py").read_bytes() == AWAKE
    assert (made / "new/x.py").read_bytes() == b"new"
    assert (made / "data/one.json").read_bytes() == b"1"
    assert {path: path.lstat() for path in tree.rglob("*")} == before


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Claims:
    """A lock of fixes of package/core.py, and the authored root with their probes."""

    def __init__(self, root: Path) -> None:
        self.catalogue = Catalogue(root)
        self.fixes: dict[str, Fix] = {}

    def fix(self, name: str, probe: str, post: bytes = b"", **about: object) -> None:
        source = f"patches/{name}/probe.py"
        place = Path(self.catalogue.place(source))
        place.parent.mkdir(parents=True)
        place.write_text(probe)
        hunk = Hunk(1, CORE, post)
        steps = (Step("diff", "x.patch", (FileChange("package", "package/core.py", (hunk,)),)),)
        texts = dict.fromkeys(
            ("title", "symptom", "cause", "affects", "workaround", "removed_in"), ""
        )
        lists = dict.fromkeys(("threads", "releases", "targets", "requires", "conflicts"), ())
        self.fixes[name] = Fix(
            **{
                **texts,
                **lists,
                "id": name,
                "drop_when": "",
                "risk": "",
                "why": "",
                "log": (),
                "wire": False,
                "need": Need.OFFERED if post else Need.UPSTREAM,
                "steps": steps if post else (),
                "probe": Probe(source, "behaviour", ".*"),
                **about,
            }  # type: ignore[arg-type]
        )

    def prove(
        self, tree: Path, *, other: Path | None = None, **options: object
    ) -> dict[str, proof.Result]:
        wheels = {"package": ("package==1",)}
        changes = [change for fix in self.fixes.values() for s in fix.steps for change in s.changes]
        files = {
            change.path: PinnedFile(
                change.target, change.path, {sha(CORE): wheels.get(change.target, ())}, {}
            )
            for change in (FileChange("package", "package/core.py", ()), *changes)
        }
        bundles = {"all": Bundle("all", "All", tuple(self.fixes))}
        lock = Lock("v1", "1", {}, {}, files, self.fixes, bundles, ())
        trees = {"tree": tree} | ({"other": other} if other else {})
        results = proof.prove(lock, trees, sys.executable, self.catalogue, **options)  # type: ignore[arg-type]
        return {result.case.id: result for result in results}


@pytest.fixture
def claims(tmp_path: Path) -> Claims:
    return Claims(tmp_path / "root")


def test_every_case_of_a_fix(tree, claims):
    claims.fix("stop", STOP, STOPPED)
    claims.fix("upstream", body("return 0, 'fine'"))
    claims.fix("not-needed", "not asked", need=Need.NOT_NEEDED)
    found = claims.prove(tree)
    assert {name: result.answer.code for name, result in found.items()} == {
        "tree-stop-pristine": PRESENT,
        "tree-upstream-pristine": ABSENT,
        "tree-stop-bundle-all": ABSENT,
        "tree-upstream-bundle-all": ABSENT,
        "tree-stop-alone": ABSENT,
        "tree-stop-mutant-Engine.stop": PRESENT,
        "tree-stop-mutant-Engine._stopped": PRESENT,
    }
    assert all(result.proved for result in found.values())
    assert list(claims.prove(tree, fixes=["upstream"])) == [
        "tree-upstream-pristine",
        "tree-upstream-bundle-all",
    ]


def test_a_probe_that_is_blind_proves_nothing(tree, claims):
    looks = "import pathlib, package\ndef probe():\n    f = pathlib.Path(package.__file__)\n"
    looks += "    return int('stopped' not in f.with_name('core.py').read_text()), ''\n"
    claims.fix("stop", looks, STOPPED)
    claims.fix("upstream", body("return 1, 'there'"))
    found = claims.prove(tree)
    assert [name for name, result in found.items() if not result.proved] == [
        "tree-upstream-pristine",
        "tree-upstream-bundle-all",
        "tree-stop-mutant-Engine.stop",
        "tree-stop-mutant-Engine._stopped",
    ]


def test_a_probe_that_finds_another_fault_proves_nothing(tree, claims):
    breaks = body(
        "from package.core import Engine", "return int(Engine().stop() != 'stopped'), 'x'"
    )
    claims.fix("stop", breaks, STOPPED)
    words = Probe("patches/stop/probe.py", "behaviour", "stops")
    claims.fixes["stop"] = claims.fixes["stop"]._replace(probe=words)
    found = claims.prove(tree)
    assert [name for name, result in found.items() if not result.proved] == [
        "tree-stop-pristine",
        "tree-stop-mutant-Engine.stop",
        "tree-stop-mutant-Engine._stopped",
    ]
    assert found["tree-stop-pristine"].fault == "finds something else than 'stops': x"
    assert found["tree-stop-alone"].fault == ""


def test_files_that_an_earlier_tree_had_are_not_tried_again(tree, claims, tmp_path):
    claims.fix("stop", STOP, STOPPED)
    other = make_tree(tmp_path / "other")
    names = [name for name in claims.prove(tree, other=other) if "mutant" in name]
    assert names == ["tree-stop-mutant-Engine.stop", "tree-stop-mutant-Engine._stopped"]
    found = claims.prove(tree, other=other)
    assert "other-stop-alone" not in found
    assert {"other-stop-pristine", "other-stop-bundle-all"} <= found.keys()


def test_a_probe_without_an_answer_is_asked_once_more(tree, claims, tmp_path):
    """It may have run out of time because others ran beside it."""
    slow = f"""
import os, pathlib
def probe():
    with open({str(tmp_path / "tries")!r}, "a+") as tries:
        tries.write("try ")
        tries.seek(0)
        if tries.read() == "try ":
            os._exit(1)
    return 0, "fine"
"""
    claims.fix("slow", slow)
    claims.fix("dies", body("os._exit(1)"))
    found = claims.prove(tree, jobs=1)
    result = found["tree-slow-pristine"]
    assert result.proved and result.first is not None and result.first.code is None
    assert (tmp_path / "tries").read_text() == "try try try "  # the bundle's is the second
    died = found["tree-dies-pristine"]
    assert not died.proved and died.answer == replace(died.first, seconds=died.answer.seconds)
    assert found["tree-slow-bundle-all"].first is None


def test_a_fix_goes_with_what_it_requires(tree, claims):
    both = STOPPED.replace(b"asleep", b"awake!")
    claims.fix("start", START, AWAKE)
    claims.fix("stop", STOP, requires=("start",), need=Need.OFFERED)
    hunk = Hunk(1, AWAKE, both)
    change = FileChange("package", "package/core.py", (hunk,))
    claims.fixes["stop"] = claims.fixes["stop"]._replace(steps=(Step("diff", "x", (change,)),))
    found = claims.prove(tree)
    assert all(result.proved for result in found.values())
    mutant = [name for name in found if "mutant" in name]
    assert mutant == [
        "tree-start-mutant-start",
        "tree-stop-mutant-Engine.stop",
        "tree-stop-mutant-Engine._stopped",
    ]


def test_a_tree_that_is_not_pristine(tree, claims):
    claims.fix("stop", STOP, STOPPED)
    (tree / "package/core.py").write_bytes(CORE + b"# changed\n")
    with pytest.raises(FixesError, match="foreign"):
        claims.prove(tree)


def test_a_plugin_without_wheels_is_proved_only_on_trees_that_hold_it(tree, claims, tmp_path):
    """A wheel's tree is not one: neither the fix nor the bundle it is in is put there."""
    edit = Edit("plugin/core.py", "replace-expression", "start", "'asleep'", "'awake!'")
    change = FileChange("plugin", "plugin/core.py", (), edits=(edit,))
    claims.fix(
        "wake",
        START.replace("package", "plugin"),
        need=Need.OFFERED,
        targets=("plugin",),
        steps=(Step("edit", "edit.toml", (change,)),),
    )
    assert claims.prove(tree) == {}
    claims.fix("stop", STOP, STOPPED)
    found = claims.prove(tree)
    assert {name.split("-")[1] for name in found} == {"stop"}
    assert {"tree-stop-bundle-all", "tree-stop-alone"} <= found.keys()

    whole = make_tree(tmp_path / "whole")
    (whole / "package").rename(whole / "plugin")
    make_tree(whole)
    found = claims.prove(whole)
    assert {name: result.answer.code for name, result in found.items() if "wake" in name} == {
        "tree-wake-pristine": PRESENT,
        "tree-wake-bundle-all": ABSENT,
        "tree-wake-alone": ABSENT,
        "tree-wake-mutant-start": PRESENT,
    }
    assert all(result.proved for result in found.values())
