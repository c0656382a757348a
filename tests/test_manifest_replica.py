"""Replicas as the manifests start them: each pod's own command lines, on two network namespaces.

The engine is the scripted one. Variables are those that the controller and the kubelet set,
the head's name is in the hosts file of each namespace, and probes run beside the launcher.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cache
import crd
import group_rules
import kubelet
import places
import pytest
import standin
import user
import yaml
from e2e import lab
from kubelet import Pod
from places import Place
from release import environ, launch
from standin import Node, until

HOSTS = (
    lab.Host("vllm-fixes-kube-a", "10.77.0.1"),
    lab.Host("vllm-fixes-kube-b", "10.77.0.2"),
)
ENDED = 12
WORDS = (
    *("--model", "/models/m", "--model-claim", "models", "--platform", "nvidia"),
    *("-tp", "1", "-pp", "2", "--cards", "1", "--grace", "5", "--meet", "60"),
)


@dataclass
class Group:
    """The pods of one replica, and the containers that were started."""

    place: Place
    folder: Path
    pods: tuple[Pod, Pod]
    user: tuple[str, ...] = ()
    nodes: list[Node] = field(default_factory=list)

    def start(self, rank: int) -> Node:
        """Start a pod's container, as the kubelet does."""
        pod = self.pods[rank]
        log = self.folder / f"{rank}.{len(self.nodes)}.log"
        with log.open("wb") as stream:
            words, variables = pod.words(pod.engine), pod.environment(pod.engine)
            process = HOSTS[rank].start([*self.user, *words], variables, stream)
        made = Node(process, log, rank)
        self.nodes.append(made)
        return made

    def prepare(self, rank: int) -> str:
        """Run a pod's init container; what it said."""
        pod = self.pods[rank]
        (container,) = pod.spec["initContainers"]
        done = subprocess.run(
            ["ip", "netns", "exec", HOSTS[rank].name, *self.user, *pod.words(container)],
            cwd="/",
            env=pod.environment(container),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def probe(self, rank: int, name: str) -> int:
        """What a probe of a pod gives."""
        pod = self.pods[rank]
        command = ["ip", "netns", "exec", HOSTS[rank].name, *self.user, *pod.probe(name)]
        variables = pod.environment(pod.engine)
        limit = pod.engine[name]["timeoutSeconds"]
        return subprocess.run(command, env=variables, timeout=limit, capture_output=True).returncode

    def up(self) -> list[Node]:
        """Start both pods' containers and wait until the startup probes succeed."""
        nodes = [self.start(rank) for rank in range(2)]
        try:
            until(lambda: all(not self.probe(rank, "startupProbe") for rank in range(2)), 60)
        except TimeoutError:
            raise AssertionError("\n".join(node.text() for node in nodes)) from None
        return nodes

    def gone(self) -> None:
        """Wait until nothing runs on either host."""
        until(lambda: not any(host.processes() for host in HOSTS), 10)


@contextmanager
def group(folder: Path, place: Place, controller: str, *words: str) -> Iterator[Group]:
    """A group of pods that a manifest describes. A pod that says so runs as another user, to
    whom the environment is read-only.
    """
    done = launch(sys.executable, "manifest", *WORDS, *words)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    (template,) = crd.templates(group_rules.workload(documents))
    names = {"lws": kubelet.given_by_lws, "storm": kubelet.given_by_storm}[controller]
    for part in ("models/m", "tool", "overlay", "secret", "scratch"):
        (folder / part).mkdir(parents=True)
    (folder / "models/m/config.json").write_text("{}")
    (folder / "secret/token").write_text(standin.TOKEN)
    security = template["spec"].get("securityContext", {})
    as_user = user.arguments(place.site.parents[2]) if security else []
    assert security.get("runAsUser", user.USER) == user.USER
    if security:
        for part in (".", "overlay", "scratch"):
            (folder / part).chmod(0o777)
    bundle = ("--profiles", place.release.root, "--to", folder / "tool/vllm-fixes.pyz")
    assert launch(sys.executable, "bundle", *bundle).returncode == 0
    where = {
        "/opt/vllm-fixes": folder / "tool",
        "/models": folder / "models",
        "/overlay/fixes": folder / "overlay/fixes",
        "/run/secrets/vllm-fixes": folder / "secret",
        "/scratch": folder / "scratch",
    }
    assert place.python
    more = {**environ(), "STANDIN": str(folder)}
    more["PATH"] = f"{place.python.parent}:{more['PATH']}"
    given = [names("vllm-pp", 2, rank) for rank in range(2)]
    pods = [
        Pod(template["spec"], host.address, variables, where, more)
        for host, variables in zip(HOSTS, given, strict=True)
    ]
    with lab.lab(HOSTS), hosts_files(given[0]):
        made = Group(place, folder, (pods[0], pods[1]), tuple(as_user))
        try:
            yield made
        finally:
            for host in HOSTS:
                host.clear()
            for node in made.nodes:
                node.process.wait(10)


@contextmanager
def hosts_files(given: Mapping[str, str]) -> Iterator[None]:
    """The head's name as cluster DNS has it: `ip netns exec` binds these over /etc/hosts."""
    storm = "{PODSET_NAME}-0.{STORM_SERVICE_NAME}"
    name = given.get("LWS_LEADER_ADDRESS") or storm.format_map(given)
    folders = [Path("/etc/netns", host.name) for host in HOSTS]
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{HOSTS[0].address} {name}\n")
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can look into; pytest's are for one."""
    made = Path(tempfile.mkdtemp(prefix="vllm-fixes-replica-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    with cache.locked("manifest-replica"):
        if reason := lab.missing(HOSTS):
            pytest.skip(reason)
        yield standin.script(places.environment(folder / "env"))


def test_a_leader_worker_set_serves_and_ends_as_one(place: Place, folder: Path) -> None:
    """The fixes by the zipapp: the launcher puts them in."""
    with group(folder / "group", place, "lws", "--fixes", "zipapp") as made:
        head, worker = made.up()
        assert place.is_fixed()
        for rank in range(2):
            assert made.probe(rank, "livenessProbe") == made.probe(rank, "readinessProbe") == 0
        assert (made.folder / "0.asked").exists(), "no token was asked for"
        head.send(signal.SIGTERM)
        head.ends(0, 15)
        worker.ends(0, 15)
        made.gone()


def test_a_pod_that_is_lost_takes_the_group_along(place: Place, folder: Path) -> None:
    """And where a StormService starts the containers again in place, they meet again."""
    words = ("--kind", "stormservice", "--fixes", "zipapp")
    with group(folder / "group", place, "storm", *words) as made:
        head, worker = made.up()
        worker.send(signal.SIGKILL)
        head.ends(ENDED, 15)
        worker.process.wait(10)
        made.gone()
        assert made.probe(0, "livenessProbe") == 1
        for file in made.folder.glob("?.*"):
            file.unlink()
        made.up()


def test_another_user_with_a_read_only_root(place: Place, folder: Path) -> None:
    """The fixes by the overlay, which the init container makes."""
    if reason := user.missing():
        pytest.skip(reason)
    words = ("--fixes", "overlay", "--user", str(user.USER))
    with group(folder / "group", place, "lws", *words) as made:
        said = made.prepare(0)
        digest = next(line for line in said.splitlines() if line.startswith("digest "))
        head, worker = made.up()
        assert digest in head.text() and digest in worker.text()
        assert place.is_pristine()
        assert made.probe(0, "livenessProbe") == made.probe(1, "readinessProbe") == 0
        engine = json.loads((made.folder / "1.json").read_text())
        assert engine["environment"]["PYTHONPATH"] == str(made.folder / "overlay/fixes")
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in HOSTS[1].processes()}
        assert owners == {user.USER}
        worker.send(signal.SIGTERM)
        worker.ends(143, 15)
        head.ends(ENDED, 15)
        made.gone()
