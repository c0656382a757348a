"""The plan: what each node of a replica runs, word for word. Pure: nothing is looked up."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fixes.errors import ExitCode, FixesError, Problem

#: vLLM's own default, so that what other tools expect is found.
MASTER_PORT = 29501
WATCH_PORT = 29590
RAY_PORT = 6379
#: What the script `ray` runs; as a module it is that of vLLM's own environment.
RAY_MODULE = "ray.scripts.scripts"
API_PORT = 8000
#: What collectives read the interface from: gloo, NCCL, Habana's HCCL.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
#: Never handed to an engine.
TOKEN = "VLLM_FIXES_TOKEN"
#: Options of vLLM that the launcher gives itself, and what says the same here.
OWN = {
    "--nnodes": "--nnodes",
    "-n": "--nnodes",
    "--node-rank": "--rank",
    "-r": "--rank",
    "--master-addr": "--head-ip",
    "--master-port": "--master-port",
    "--headless": "--worker",
    "--distributed-executor-backend": "--engine",
    "--tensor-parallel-size": "--tensor-parallel-size",
    "-tp": "--tensor-parallel-size",
    "--pipeline-parallel-size": "--pipeline-parallel-size",
    "-pp": "--pipeline-parallel-size",
}
#: vLLM refuses it on a node without an HTTP server.
_HEADS_ALONE = ("--api-server-count", "-asc")
#: Options of `vllm serve` that are the frontend's with Dynamo, and what they are called there.
FRONTEND = {
    "--host": "--http-host",
    "--port": "--http-port",
    "--ssl-certfile": "--tls-cert-path",
    "--ssl-keyfile": "--tls-key-path",
}
#: How Dynamo's parts talk to each other: the frontend and the engine must say the same.
PLANES = ("--discovery-backend", "--request-plane", "--response-plane", "--event-plane")


class Settings(NamedTuple):
    """What all nodes of a replica have in common."""

    model: str
    nnodes: int
    tensor: int
    pipeline: int
    engine: str = "vllm"
    program: tuple[str, ...] = ("vllm",)
    python: str = "python3"
    arguments: tuple[str, ...] = ()
    interface: str = ""
    master_port: int = MASTER_PORT
    ray_address: str = ""
    dynamo_port: str = ""

    @property
    def devices(self) -> int:
        """The devices that every node needs."""
        return self.tensor * self.pipeline // self.nnodes

    @property
    def tensor_crosses(self) -> bool:
        """Whether a tensor-parallel group has ranks on several nodes: they are consecutive."""
        return self.nnodes > 1 and bool(self.devices % self.tensor)

    @property
    def api_port(self) -> int:
        """The port that the head serves HTTP on."""
        given = option(self.arguments, "--port")
        if not given and self.engine == "dynamo":
            given = self.dynamo_port
        return int(given) if is_port(given) else API_PORT


class Node(NamedTuple):
    """One node: its commands in the order of their start, and the variables they get."""

    rank: int
    role: str
    commands: tuple[tuple[str, ...], ...]
    environment: dict[str, str]


def settings(
    nnodes: int,
    tensor: int | None,
    pipeline: int | None,
    engine: str,
    model: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> Settings:
    """Settings from options, then presets in the environment, then defaults.

    Without any size every node is a pipeline stage. Raises FixesError (usage) with all that
    does not add up.
    """
    wrong: list[str] = []
    rest = list(arguments)
    named = [("--model", model)] if model else []
    if rest and not rest[0].startswith("-"):
        named.append(("behind --", rest.pop(0)))
    if given := option(rest, "--model"):
        named.append(("--model behind --", given))
        rest = without(rest, "--model")
    if len({name for _, name in named}) > 1:
        wrong.append("several models: " + ", ".join(f"{name} ({by})" for by, name in named))
    model = named[0][1] if named else environ.get("MODEL", "").strip()
    if not model:
        wrong.append("no model: --model, or the first word behind --")
    for word in rest:
        if same := _own(word):
            wrong.append(f"{word} behind --: the launcher sets it; use its own {same}")
    for given, by in ((option(rest, "--port"), "--port behind --"), *_ports(environ)):
        if given and not is_port(given):
            wrong.append(f"{by} is {given}, which is no port")
    if tensor is None:
        tensor = _preset(environ, "TENSOR_PARALLEL_SIZE", wrong)
    if pipeline is None:
        pipeline = _preset(environ, "PIPELINE_PARALLEL_SIZE", wrong)
    if pipeline is None:
        pipeline = nnodes if tensor is None else 1
    tensor = 1 if tensor is None else tensor
    if tensor < 1 or pipeline < 1 or (tensor * pipeline) % nnodes:
        wrong.append(f"TP {tensor} x PP {pipeline} cannot be spread evenly over {nnodes} nodes")
    if wrong:
        hint = "`vllm-fixes launch --help` shows the options"
        raise FixesError(*(Problem(ExitCode.USAGE, "usage", what, hint=hint) for what in wrong))
    return Settings(
        model,
        nnodes,
        tensor,
        pipeline,
        engine,
        arguments=tuple(rest),
        ray_address=environ.get("RAY_ADDRESS", ""),
        dynamo_port=environ.get("DYN_HTTP_PORT", ""),
    )


def node(made: Settings, rank: int, head: str, own: str, environ: Mapping[str, str]) -> Node:
    """What one node runs. ``head`` and ``own`` are literal addresses.

    An interface that the environment names already is left alone.
    """
    variables = {"VLLM_HOST_IP": own}
    for name in INTERFACES:
        if made.interface and not environ.get(name):
            variables[name] = made.interface
    if made.engine == "ray" and not made.ray_address:
        # Else vLLM, which starts at the same time, may find no cluster and make one of its own.
        variables["RAY_ADDRESS"] = _ray_head(head)
        variables["RAY_USAGE_STATS_ENABLED"] = environ.get("RAY_USAGE_STATS_ENABLED") or "0"
    role = "head" if rank == 0 else "worker"
    if made.nnodes == 1:
        variables.pop("VLLM_HOST_IP")
    for name in _HEADS_ALONE if rank else ():
        made = made._replace(arguments=tuple(without(made.arguments, name)))
    build = {"vllm": _vllm, "dynamo": _dynamo, "ray": _ray}[made.engine]
    return Node(rank, role, tuple(build(made, rank, head, own)), variables)


def child_environment(made: Node, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a node's commands."""
    kept = {name: value for name, value in environ.items() if name != TOKEN}
    return {**kept, **made.environment}


def ray_token(made: Settings, token: bytes, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that close a Ray cluster of the replica's own, with a token made from its own.

    Without one whoever reaches the cluster's ports runs code in it; and Ray looks for one in
    the home folder, which one node may have and another not.
    """
    given = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if made.engine != "ray" or made.ray_address or not token or any(map(environ.get, given)):
        return {}
    derived = hmac.new(token, b"vllm-fixes launch: Ray", "sha256").hexdigest()
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": derived}


def is_port(text: str) -> bool:
    """Whether it is a number of a TCP port."""
    return text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536


def _own(word: str) -> str:
    """What is to be given instead of a word that sets what the launcher sets; empty for others.

    As argparse takes it: beginnings of long options, and values that stick to a short one.
    """
    key = word.partition("=")[0]
    if key.startswith("--"):
        key = key.replace("_", "-")
        found = [own for own in OWN if len(key) > 2 and own.startswith(key)]
    else:
        short = [own for own in OWN if not own.startswith("--")]
        found = [own for own in short if len(key) > 1 and own.startswith(key)]
        found += [own for own in short if len(own) == 2 and word.startswith(own)]
    return OWN[found[0]] if found else ""


def _ports(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Ports that the environment says. MASTER_PORT is a URI where a Service is called `master`."""
    master = environ.get("MASTER_PORT", "")
    found = [(environ.get("DYN_HTTP_PORT", ""), "DYN_HTTP_PORT")]
    return found if "://" in master else [(master, "MASTER_PORT"), *found]


def option(arguments: Sequence[str], name: str) -> str:
    """An option's value on vLLM's command line, the last one given; empty if not given."""
    found = ""
    for at, word in enumerate(arguments):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") == name:
            found = value if equals else "".join(arguments[at + 1 : at + 2])
    return found


def without(arguments: Sequence[str], name: str) -> list[str]:
    """A command line without an option that takes a value."""
    kept: list[str] = []
    skip = False
    for word in arguments:
        key, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif key.replace("_", "-") == name:
            skip = not equals
        else:
            kept.append(word)
    return kept


def script(interpreter: str, path: str) -> tuple[str, ...]:
    """What starts vLLM in an interpreter's environment: its `vllm`, else the module.

    A `vllm` that runs another interpreter is passed over: the fixes are not in that one.
    """
    import shutil

    folder = os.path.dirname(interpreter)
    for found in (os.path.join(folder, "vllm"), shutil.which("vllm", path=path)):
        if found and os.access(found, os.X_OK) and _runs(found, folder):
            return (found,)
    return (interpreter, "-m", "vllm.entrypoints.cli.main")


def _runs(found: str, folder: str) -> bool:
    """Whether a script's first lines name an interpreter in this folder.

    Installers write `#!/bin/sh` and an exec line where the path is too long for the kernel.
    """
    try:
        with open(found, "rb") as stream:
            lines = stream.read(4096).split(b"\n")[:2]
    except OSError:
        return False
    words = b" ".join(lines).replace(b"#!", b" ").replace(b"'", b" ").replace(b'"', b" ").split()
    paths = [os.fsdecode(word) for word in words if b"python" in word and b"/" in word]
    return any(os.path.realpath(os.path.dirname(one)) == os.path.realpath(folder) for one in paths)


def _sizes(made: Settings) -> list[str]:
    sizes = ["--tensor-parallel-size", str(made.tensor)]
    sizes += ["--pipeline-parallel-size", str(made.pipeline)]
    given = {word.replace("_", "-") for word in made.arguments}
    if made.pipeline > 1 and not given & {"--async-scheduling", "--no-async-scheduling"}:
        sizes.append("--no-async-scheduling")
    return sizes


def _nodes(made: Settings, rank: int, head: str) -> list[str]:
    if made.nnodes == 1:
        return []
    words = ["--distributed-executor-backend", "mp", "--nnodes", str(made.nnodes)]
    words += ["--node-rank", str(rank), "--master-addr", head]
    words += ["--master-port", str(made.master_port)]
    return [*words, "--headless"] if rank else words


def _vllm(made: Settings, rank: int, head: str, own: str) -> list[tuple[str, ...]]:
    words = [*made.program, "serve", made.model, *_sizes(made), *_nodes(made, rank, head)]
    return [(*words, *made.arguments)]


def _dynamo(made: Settings, rank: int, head: str, own: str) -> list[tuple[str, ...]]:
    """Dynamo's frontend on the head, its vLLM on every node.

    The frontend serves HTTP, so it gets the options that say how; dynamo.vllm refuses them.
    """
    rest: Sequence[str] = made.arguments
    frontend = [made.python, "-m", "dynamo.frontend"]
    for name, its in FRONTEND.items():
        if given := option(rest, name):
            frontend += [its, given]
            rest = without(rest, name)
    for name in PLANES:
        if given := option(rest, name):
            frontend += [name, given]
    words = [made.python, "-m", "dynamo.vllm", "--model", made.model]
    words += [*_sizes(made), *_nodes(made, rank, head), *rest]
    return [tuple(words)] if rank else [tuple(frontend), tuple(words)]


def _ray(made: Settings, rank: int, head: str, own: str) -> list[tuple[str, ...]]:
    """A Ray cluster of the replica's nodes, unless RAY_ADDRESS names one that they are in.

    Ray itself waits for its head, in `ray start` and in vLLM alike, and vLLM for the nodes (up
    to half an hour, for its placement group).
    """
    there: list[tuple[str, ...]] = []
    if not made.ray_address:
        start = [made.python, "-m", RAY_MODULE, "start", "--block", f"--node-ip-address={own}"]
        join = [f"--address={_ray_head(head)}"]
        there = [(*start, *(join if rank else ["--head", f"--port={RAY_PORT}"]))]
    if rank:
        return there
    words = [*made.program, "serve", made.model, *_sizes(made)]
    return [*there, (*words, "--distributed-executor-backend", "ray", *made.arguments)]


def _ray_head(head: str) -> str:
    return f"[{head}]:{RAY_PORT}" if ":" in head else f"{head}:{RAY_PORT}"


def _preset(environ: Mapping[str, str], name: str, wrong: list[str]) -> int | None:
    value = environ.get(name)
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        wrong.append(f"{name}={value} is no whole number")
        return None
