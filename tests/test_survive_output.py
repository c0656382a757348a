"""Outputs that are closed, full or terminals, and what a run imports to write to them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import places
import pytest
from places import Place
from release import BUNDLE, CHECKOUT, LAUNCHER, environ, launch


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return places.environment(tmp_path / "env")


@pytest.fixture
def tree(tmp_path: Path) -> Place:
    return places.unpacked(tmp_path / "tree")


def coloured(*command: str | Path, **env: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environ(**env)) as run:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # how a terminal ends on Linux
            pass
        run.wait()
    os.close(ours)
    return text.decode()


def test_colour_on_a_terminal_unless_it_is_unwanted(tree: Place) -> None:
    where = ("--tree", tree.site, "--profiles", tree.release.root)
    command = (sys.executable, LAUNCHER, "status", *where)
    assert "\x1b[" in coloured(*command)
    assert "\x1b[" not in coloured(*command, NO_COLOR="1")
    assert "\x1b[" not in coloured(*command, "--json")
    assert "\x1b[31m" in coloured(sys.executable, LAUNCHER, "nothing", *where)


CLOSED = {
    "standard output": '"$@" >&-',
    "standard error": '"$@" 2>&-',
    "both": '"$@" >&- 2>&-',
    "all three": '"$@" <&- >&- 2>&-',
    "a full device": '"$@" > /dev/full',
}


@pytest.mark.parametrize("case", CLOSED)
def test_a_closed_output_does_not_change_the_verdict(place: Place, case: str) -> None:
    command = [place.python or "", LAUNCHER]
    where = ["--profiles", place.release.root]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", CLOSED[case], "sh", *command, *arguments, *where],
            capture_output=True,
            text=True,
            env=environ(),
            cwd="/",
        )

    for code, arguments in (
        (0, (BUNDLE,)),
        (0, (BUNDLE,)),
        (0, ("status", "--json")),
        (2, ("nothing",)),
        (2, ("nothing", "--json")),
        (0, ("revert", "--all")),
    ):
        done = run(*arguments)
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr
        if case == "standard error" and "--json" not in arguments and code:
            assert done.stdout == ""  # problems do not go to the other output
    assert place.is_pristine()


def test_a_reader_that_goes_away(place: Place) -> None:
    run = subprocess.Popen(
        [place.python or "", LAUNCHER, BUNDLE, "--json", "--profiles", place.release.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ(),
    )
    assert run.stdout and run.stderr
    run.stdout.close()
    assert run.stderr.read() == b"" and run.wait() == 0
    run.stderr.close()
    assert place.is_fixed()


#: Says of an interpreter without site-packages what the run imported.
MODULES = places.behind(
    """
import atexit, json
atexit.register(lambda: print(json.dumps({
    name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())
}), file=sys.stderr))
"""
)


@pytest.mark.parametrize("verb", ["apply", "status", "revert", "diff", "list", "show"])
def test_the_running_half_is_standard_library_only(tree: Place, verb: str) -> None:
    """``-I -S``: no site-packages, no environment variables, nothing of the user's."""
    flags = ("-I", "-S", *MODULES["flags"])
    where = () if verb in ("list", "show") else ("--tree", tree.site)
    names = {"apply": (BUNDLE,), "revert": ("--all",), "diff": (BUNDLE,), "show": ("stop",)}
    arguments = (verb, *names.get(verb, ()), *where, "--profiles", tree.release.root)
    done = launch(sys.executable, *arguments, flags=flags)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stderr)
    library = os.path.dirname(os.__file__)
    for name, file in modules.items():
        ours = name.partition(".")[0] == "fixes" or name == "__main__"
        assert not name.startswith("fixes.authoring")
        folder = str(CHECKOUT) if ours else library
        assert file is None or os.path.realpath(file).startswith(folder + "/"), (name, file)
        assert "site-packages" not in (file or "")
        assert ours or name.partition(".")[0] in sys.stdlib_module_names, name
    if verb == "apply":
        assert tree.is_fixed()


def test_an_already_applied_run_imports_little(place: Place) -> None:
    place.ok(BUNDLE)
    done = place.run(BUNDLE, **MODULES)
    ours = {name for name in json.loads(done.stderr) if name.startswith("fixes.")}
    assert not ours & {"fixes.plan", "fixes.commit", "fixes.session", "fixes.lockfile"}
