"""Verification that fails, cannot tell, hangs or is interrupted: all is as it was before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import places
import pytest
from places import Place
from release import BUNDLE, FIXED, FIXES, LAUNCHER, Fix, Release, environ

SLEEP = """
def probe():
    import os, subprocess, time
    from pathlib import Path
    if {fixed}:
        other = subprocess.Popen(["sleep", "60"])
        Path({mark!r}).write_text(f"{{os.getpid()}} {{other.pid}}")
        time.sleep(60)
    return ({fixed} and 0 or 1), "slept"
"""


def with_probe(folder: Path, text: str, name: str = "end", **keys: object) -> Place:
    """An environment, and fixes of which one has another probe."""
    fixes: dict[str, Fix] = {**FIXES, name: replace(FIXES[name], probe=text, **keys)}
    release = Release(folder / "release", fixes)
    return places.environment(folder / "env", "pip", release)


def answering(answer: str) -> str:
    """A probe that says the truth on the pristine release, and this on the fixed one."""
    return f"def probe():\n    import vllm.open\n    fixed = vllm.open.end() == 3\n    {answer}\n"


def test_an_offline_hub_is_nothing_to_a_probe(tmp_path: Path) -> None:
    """vLLM then looks up the name of a model that a probe makes a configuration of."""
    offline = 'import os\n    offline = os.environ.get("HF_HUB_OFFLINE") == "1"'
    text = answering(f'{offline}\n    return (0 if fixed and not offline else 1), "offline"')
    place = with_probe(tmp_path, text)
    place.ok(BUNDLE, env={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})


FAILING = {
    "the fault is there": 'return 1, "still there"',
    "it cannot tell, undeclared": 'return (77, "no-reason: none") if fixed else (1, "there")',
    "it raises": 'return [][0] if fixed else (1, "there")',
    "it exits": 'raise SystemExit(0) if fixed else None\n    return 1, "there"',
    "it gives nothing": 'return None if fixed else (1, "there")',
    "it gives another answer": 'return (2, "so") if fixed else (1, "there")',
    "it dies": 'import os\n    fixed and os._exit(0)\n    return 1, "there"',
}


@pytest.mark.parametrize("case", FAILING)
def test_a_probe_that_fails_rolls_everything_back(tmp_path: Path, case: str) -> None:
    text = answering(FAILING[case])
    if case == "it exits":
        text = answering('if fixed:\n        raise SystemExit(0)\n    return 1, "there"')
    place = with_probe(tmp_path, text)
    before = places.snapshot(place.site, bytecode=True)
    inodes = {path: now[:4] for path, now in places.identities(place.site).items()}
    said = place.fails(5, BUNDLE)
    assert "probe: end: " in said
    assert places.snapshot(place.site, bytecode=True) == before
    assert {
        path: now[:4] for path, now in places.identities(place.site).items() if path.endswith(".py")
    } == {path: now for path, now in inodes.items() if path.endswith(".py")}
    # What is in stays in, what would break it does not come.
    place.ok("begin")
    assert place.json("end")["exit"] == 5
    assert place.json("status")["exit"] == 0
    place.ok("end", "--verify", "import")
    document = place.json("verify")
    assert document["exit"] == 5 and document["problems"][0]["kind"] == "probe"
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_a_condition_that_is_declared_is_unproven_here(tmp_path: Path) -> None:
    text = answering('return (77, "no-gpu: there is none") if fixed else (1, "there")')
    place = with_probe(tmp_path, text, cannot_tell={"no-gpu": "there is no GPU"})
    output = place.ok(BUNDLE)
    assert re.search("applied +end +unproven here: no-gpu: there is none", output)
    assert "2 of 3 probes passed" in output
    assert "unproven here: no-gpu" in place.ok(BUNDLE)
    (line,) = [fix for fix in place.json("status")["fixes"] if fix["id"] == "end"]
    assert line["detail"] == "unproven here: no-gpu: there is none"


def test_a_fixed_module_that_cannot_be_imported(tmp_path: Path) -> None:
    """A package that another file of the release breaks, which no fix touches."""
    place = places.environment(tmp_path / "env")
    (place.package / "__init__.py").write_text("import nowhere_to_be_found\n")
    place.pristine = places.snapshot(place.site)
    said = place.fails(5, BUNDLE)
    assert "import: vllm.core: cannot be imported: ModuleNotFoundError" in said
    assert place.is_pristine()
    place.ok(BUNDLE, "--verify", "bytes")
    assert place.json("verify", "--verify", "bytes")["exit"] == 0
    assert place.json("verify")["exit"] == 5
    assert place.json(BUNDLE)["exit"] == 5  # it was never proven
    assert (place.package / "core.py").read_bytes() == FIXED["vllm/core.py"]


def test_names_that_callers_reach_must_be_the_fixed_code(tmp_path: Path) -> None:
    """worker.py holds a name that the fix says is reached; here somebody wrapped it."""
    place = places.environment(tmp_path / "env")
    (place.package / "v1/worker.py").write_text(
        "class Engine:\n    def start(self):\n        pass\n"
    )
    place.pristine = places.snapshot(place.site)
    said = place.fails(5, "begin")
    assert "vllm.v1.worker: Engine.start is not the fixed file's code" in said
    assert place.is_pristine()


def test_a_probe_that_hangs_is_a_failure(tmp_path: Path) -> None:
    place = with_probe(
        tmp_path, answering("import time\n    fixed and time.sleep(60)\n    return 1, ''")
    )
    first = time.monotonic()
    shorter = places.behind("import fixes.verify; fixes.verify.PROBE_S = 0.5")
    done = place.run(BUNDLE, **shorter)
    assert done.returncode == 5 and "no answer within" in done.stderr
    assert time.monotonic() - first < 30 and place.is_pristine()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as stream:
        return stream.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("number", "whole_group", "code"),
    [
        (signal.SIGINT, True, 130),  # Ctrl-C goes to every process of the terminal
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, 143),
        (signal.SIGTERM, True, 143),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_verification(
    tmp_path: Path, number: int, whole_group: bool, code: int, as_json: bool
) -> None:
    mark = tmp_path / "mark"
    fixed = "__import__('vllm.open').open.end() == 3"
    place = with_probe(tmp_path, SLEEP.format(mark=str(mark), fixed=fixed))
    before = places.snapshot(place.site, bytecode=True)
    run = subprocess.Popen(
        [place.python or "", LAUNCHER, BUNDLE, "--profiles", place.release.root]
        + ["--json"] * as_json,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    for path, data in FIXED.items():  # written, and not proven yet
        assert (place.site / path).read_bytes() == data
    (os.killpg if whole_group else os.kill)(run.pid, number)
    out, err = run.communicate(timeout=30)
    assert run.returncode == code, err
    word = {130: "interrupted", 143: "terminated"}[code]
    if as_json:
        import json

        document = json.loads(out)
        assert document["exit"] == code and document["problems"][0]["kind"] == word
    else:
        assert f"{word}: " in err and "rolled back" in err and "Traceback" not in err
    assert places.snapshot(place.site, bytecode=True) == before
    left = [int(process) for process in mark.read_text().split()]
    deadline = time.monotonic() + 5
    while any(map(alive, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(left) == 2 and not any(map(alive, left))


def test_two_signals_do_not_leave_it_half_done(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    fixed = "__import__('vllm.open').open.end() == 3"
    place = with_probe(tmp_path, SLEEP.format(mark=str(mark), fixed=fixed))
    run = subprocess.Popen(
        [place.python or "", LAUNCHER, BUNDLE, "--profiles", place.release.root],
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
    )
    while not mark.exists():
        time.sleep(0.02)
    for _ in range(5):
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGTERM)
        time.sleep(0.003)
    _, err = run.communicate(timeout=30)
    assert run.returncode in (130, 143), err
    assert place.json("status")["exit"] in (0, 1)
    place.ok(BUNDLE, "--verify", "bytes")
    place.ok("revert", "--all")
    assert place.is_pristine()
