"""What a replica would run and what is checked before: nothing is started here."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release import CHECKOUT, environ, launch

from fixes.errors import ExitCode, FixesError, Problem
from fixes.launch import (
    address,
    devices,
    facts,
    group,
    health,
    link,
    meeting,
    model,
    options,
    plan,
    preflight,
    strangers,
    wire,
)
from fixes.launch.group import Asked, Group
from fixes.launch.meeting import Head, Worker
from fixes.launch.model import Identity
from fixes.launch.plan import Settings
from fixes.launch.preflight import Place

LWS = {"LWS_LEADER_ADDRESS": "big-0.big.default", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}
STORM = {
    "PODSET_NAME": "set",
    "STORM_SERVICE_NAME": "storm",
    "POD_GROUP_INDEX": "2",
    "POD_GROUP_SIZE": "4",
}
TORCHRUN = {"MASTER_ADDR": "10.0.0.1", "NNODES": "3", "NODE_RANK": "2"}
PYTORCHJOB = {"MASTER_ADDR": "job-master-0", "PET_NNODES": "2", "PET_NODE_RANK": "1"}


def without(environment: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != name}


# Who this node is


@pytest.mark.parametrize(
    ("asked", "environment", "wanted"),
    [
        (Asked(head=True, head_ip="a"), {}, Group(0, 2, "a", "--head")),
        (Asked(worker=True, head_ip="a"), {}, Group(1, 2, "a", "--worker")),
        (Asked(worker=True, rank=2, nnodes=3, head_ip="a"), {}, Group(2, 3, "a", "--worker")),
        (Asked(rank=2, nnodes=4, head_ip="a"), {}, Group(2, 4, "a", "--rank")),
        (Asked(head=True, head_ip="a"), {"NNODES": "4"}, Group(0, 4, "a", "--head")),
        (Asked(), {}, Group(0, 1, "", "one node")),
        (Asked(), LWS, Group(1, 2, "big-0.big.default", "LeaderWorkerSet")),
        (Asked(), STORM, Group(2, 4, "set-0.storm", "StormService")),
        (Asked(), TORCHRUN, Group(2, 3, "10.0.0.1", "torchrun")),
        (Asked(), PYTORCHJOB, Group(1, 2, "job-master-0", "PyTorchJob")),
        (Asked(), {**LWS, **STORM}, Group(1, 2, "big-0.big.default", "LeaderWorkerSet")),
        (Asked(head_ip="b"), LWS, Group(1, 2, "b", "LeaderWorkerSet")),
        (Asked(rank=0), LWS, Group(0, 2, "big-0.big.default", "--rank")),
        (Asked(), {"NNODES": "1"}, Group(0, 1, "", "one node")),
        (Asked(head=True, nnodes=2), {"LWS_WORKER_INDEX": "1"}, Group(0, 2, "", "--head")),
    ],
)
def test_who_this_node_is(asked: Asked, environment: Mapping[str, str], wanted: Group) -> None:
    assert group.find(asked, environment) == wanted


@pytest.mark.parametrize(
    ("asked", "environment", "said"),
    [
        (Asked(head=True, worker=True), {}, "exclude each other"),
        (Asked(head=True, rank=1), {}, "--head is rank 0"),
        (Asked(worker=True, rank=0, head_ip="a"), {}, "cannot be rank 0"),
        (Asked(worker=True, nnodes=3, head_ip="a"), {}, "--worker needs --rank"),
        (Asked(worker=True), {}, "needs the head's address"),
        (Asked(rank=2, nnodes=2, head_ip="a"), {}, "rank 2 of 2 nodes"),
        (Asked(rank=-1, nnodes=2, head_ip="a"), {}, "rank -1 of 2 nodes"),
        (Asked(nnodes=0), {}, "0 nodes"),
        (Asked(nnodes=2), {}, "says which node"),
        (Asked(), {"NNODES": "2"}, "says which node"),
        (Asked(), {**LWS, "LWS_WORKER_INDEX": "x"}, "LWS_WORKER_INDEX=x is no whole number"),
        (Asked(), {**LWS, "LWS_LEADER_ADDRESS": "", "NNODES": "2"}, "says which node"),
        (Asked(head=True), {"NNODES": "two"}, "NNODES=two is no whole number"),
        (Asked(rank=0), {}, "--rank needs --nnodes"),
        (Asked(rank=1, head_ip="a"), {}, "--rank needs --nnodes"),
        (Asked(), without(LWS, "LWS_LEADER_ADDRESS"), "half of a LeaderWorkerSet's: LWS_LEADER"),
        (Asked(), {**LWS, "LWS_LEADER_ADDRESS": ""}, "half of a LeaderWorkerSet's: LWS_LEADER"),
        (Asked(), without(LWS, "LWS_WORKER_INDEX"), "half of a LeaderWorkerSet's: LWS_WORKER"),
        (Asked(), {**STORM, "PODSET_NAME": ""}, "half of a StormService's: PODSET_NAME"),
        (Asked(), without(PYTORCHJOB, "MASTER_ADDR"), "half of a PyTorchJob's: MASTER_ADDR"),
        (Asked(), without(TORCHRUN, "NNODES"), "half of a torchrun's: NNODES is missing"),
        (Asked(rank=1), without(LWS, "LWS_GROUP_SIZE"), "half of a LeaderWorkerSet's"),
    ],
)
def test_what_does_not_say_who(asked: Asked, environment: Mapping[str, str], said: str) -> None:
    with pytest.raises(FixesError) as error:
        group.find(asked, environment)
    assert error.value.exit_code == 2 and said in str(error.value)


# What it runs


def made(nnodes: int = 2, *arguments: str, engine: str = "vllm", **more: int | None) -> Settings:
    sizes = {"tensor": None, "pipeline": None, **more}
    return plan.settings(
        nnodes, sizes["tensor"], sizes["pipeline"], engine, "m", ("--dtype", "auto", *arguments), {}
    )


def test_the_commands_of_two_nodes_by_eight_cards() -> None:
    settings = made(2, tensor=8, pipeline=2)
    assert settings.devices == 8 and not settings.tensor_crosses
    shared = (
        "vllm serve m --tensor-parallel-size 8 --pipeline-parallel-size 2 --no-async-scheduling "
        "--distributed-executor-backend mp --nnodes 2 --node-rank {} --master-addr 10.0.0.1 "
        "--master-port 29501 {}--dtype auto"
    )
    for rank, headless in enumerate(("", "--headless ")):
        node = plan.node(settings, rank, "10.0.0.1", f"10.0.0.{rank + 1}", {})
        assert " ".join(*node.commands) == shared.format(rank, headless)
        assert node.environment == {"VLLM_HOST_IP": f"10.0.0.{rank + 1}"}


@pytest.mark.parametrize(
    ("nnodes", "tensor", "pipeline", "wanted"),
    [
        (2, None, None, (1, 2)),
        (3, None, None, (1, 3)),
        (2, 16, None, (16, 1)),
        (2, None, 2, (1, 2)),
        (1, None, None, (1, 1)),
        (1, 8, None, (8, 1)),
    ],
)
def test_sizes_that_were_not_given(
    nnodes: int, tensor: int | None, pipeline: int | None, wanted: tuple[int, int]
) -> None:
    settings = made(nnodes, tensor=tensor, pipeline=pipeline)
    assert (settings.tensor, settings.pipeline) == wanted


@pytest.mark.parametrize(
    ("tensor", "pipeline", "crosses"),
    [(16, 1, True), (8, 2, False), (4, 4, False), (2, 1, True), (1, 2, False), (4, 3, True)],
)
def test_tensor_parallelism_over_nodes(tensor: int, pipeline: int, crosses: bool) -> None:
    assert made(2, tensor=tensor, pipeline=pipeline).tensor_crosses is crosses


def test_presets_of_the_environment() -> None:
    presets = {"MODEL": "some/model", "TENSOR_PARALLEL_SIZE": "16"}
    settings = plan.settings(2, None, None, "vllm", "", (), presets)
    assert (settings.model, settings.tensor, settings.pipeline) == ("some/model", 16, 1)
    settings = plan.settings(2, 8, 2, "vllm", "", ("other", "--seed", "1"), presets)
    assert (settings.model, settings.tensor) == ("other", 8)
    assert settings.arguments == ("--seed", "1")
    settings = plan.settings(2, None, None, "vllm", "", ("--model=third", "--seed", "1"), {})
    assert (settings.model, settings.arguments) == ("third", ("--seed", "1"))


@pytest.mark.parametrize("option", sorted(plan.OWN))
def test_what_the_launcher_sets_cannot_be_given_behind(option: str) -> None:
    for word in (option, f"{option}=3", option.replace("-", "_").replace("__", "--", 1)):
        if option.count("-") == 1 and word != option and "=" not in word:
            continue
        with pytest.raises(FixesError, match="the launcher sets it"):
            made(2, word, "3")


@pytest.mark.parametrize(
    "word",
    [
        "-n3",
        "-r1",
        "-n=3",
        "-t",
        "-tp=2",
        "--nnode",
        "--tensor_parallel=2",
        "--master",
        "--headles",
    ],
)
def test_what_the_launcher_sets_in_every_way_that_argparse_takes(word: str) -> None:
    with pytest.raises(FixesError, match="the launcher sets it"):
        made(2, word, "3")


def test_words_that_only_look_like_it() -> None:
    words = ("--max-num-seqs", "-1", "-q", "awq", "--no-enable-prefix-caching")
    assert made(2, *words).arguments == ("--dtype", "auto", *words)


@pytest.mark.parametrize("port", ["0", "65536", "x", "\u00b2", "9" * 5000])
def test_what_is_no_port(port: str) -> None:
    with pytest.raises(FixesError, match=r"--port behind -- is .*, which is no port"):
        made(2, "--port", port)
    for name in ("MASTER_PORT", "DYN_HTTP_PORT"):
        with pytest.raises(FixesError, match=name):
            plan.settings(2, None, None, "vllm", "m", (), {name: port})
    plan.settings(2, None, None, "vllm", "m", (), {"MASTER_PORT": "tcp://10.0.0.1:80"})


@pytest.mark.parametrize("name", ["--api-server-count", "--api_server_count", "-asc"])
def test_servers_of_the_api_are_the_heads_alone(name: str) -> None:
    """vLLM refuses the option on a node without one."""
    settings = made(2, name, "2", "--seed", "1")
    head, worker = (plan.node(settings, rank, "a", "a", {}).commands[0] for rank in range(2))
    assert head[-4:] == (name, "2", "--seed", "1")
    assert not [one for one in options.compared(settings.arguments, 2, {}) if "server" in one]
    assert options.compared(("-asc", "2"), 1, {}) == {}
    assert worker[-3:] == ("auto", "--seed", "1")


@pytest.mark.parametrize(
    ("nnodes", "sizes", "model", "arguments", "said"),
    [
        (2, (3, 1), "m", (), "cannot be spread evenly over 2 nodes"),
        (2, (0, 2), "m", (), "TP 0 x PP 2"),
        (2, (-2, -1), "m", (), "TP -2 x PP -1"),
        (2, (1, 2), "", ("--dtype", "auto"), "no model"),
        (2, (1, 2), "m", ("other",), "several models: m (--model), other (behind --)"),
    ],
)
def test_what_is_no_plan(
    nnodes: int, sizes: tuple[int, int], model: str, arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(FixesError) as error:
        plan.settings(nnodes, *sizes, "vllm", model, arguments, {})
    assert error.value.exit_code == 2 and said in str(error.value)


def test_scheduling_is_the_operators_where_it_is_given() -> None:
    (command,) = plan.node(made(2, "--async-scheduling"), 0, "a", "a", {}).commands
    assert command.count("--async-scheduling") == 1 and "--no-async-scheduling" not in command
    (command,) = plan.node(made(1), 0, "a", "a", {}).commands
    assert "--no-async-scheduling" not in command and "--nnodes" not in command


def test_interfaces_that_the_environment_names_stay() -> None:
    settings = made()._replace(interface="eth1")
    node = plan.node(settings, 0, "a", "a", {"NCCL_SOCKET_IFNAME": "=ib0"})
    assert node.environment["GLOO_SOCKET_IFNAME"] == "eth1"
    assert "NCCL_SOCKET_IFNAME" not in node.environment
    whole = plan.child_environment(node, {"NCCL_SOCKET_IFNAME": "=ib0", plan.TOKEN: "secret"})
    assert whole["NCCL_SOCKET_IFNAME"] == "=ib0" and "secret" not in whole.values()


def test_ray_starts_a_cluster_or_joins_one() -> None:
    settings = made(2, engine="ray")
    ray, serve = plan.node(settings, 0, "10.0.0.1", "10.0.0.1", {}).commands
    assert ray[1:3] == ("-m", "ray.scripts.scripts")
    assert " ".join(ray[3:]) == "start --block --node-ip-address=10.0.0.1 --head --port=6379"
    assert "--nnodes" not in serve and serve[serve.index("ray") - 1].endswith("backend")
    (worker,) = plan.node(settings, 1, "fd00::1", "fd00::2", {}).commands
    assert worker[-1] == "--address=[fd00::1]:6379"
    joined = settings._replace(ray_address="auto")
    assert len(plan.node(joined, 0, "a", "a", {}).commands) == 1
    assert not plan.node(joined, 1, "a", "b", {}).commands


def test_which_vllm_is_started(tmp_path: Path) -> None:
    """Never one of another environment: the fixes are not in that."""
    ours, theirs = tmp_path / "ours/bin", tmp_path / "theirs/bin"
    for folder in (ours, theirs):
        folder.mkdir(parents=True)
    python = str(ours / "python3")
    module = (python, "-m", "vllm.entrypoints.cli.main")
    assert plan.script(python, str(theirs)) == module
    found = theirs / "vllm"
    found.write_text(f"#!{theirs}/python\n")
    found.chmod(0o755)
    assert plan.script(python, str(theirs)) == module
    for text in (f"#!{ours}/python3.11\n", f"#!/bin/sh\n'''exec' \"{ours}/python\" \"$0\"\n'''\n"):
        found.write_text(text)
        assert plan.script(python, str(theirs)) == (str(found),)
    beside = ours / "vllm"
    beside.write_text(f"#!{ours}/python\n")
    beside.chmod(0o755)
    assert plan.script(python, str(theirs)) == (str(beside),)


def test_the_port_of_the_api() -> None:
    assert made().api_port == 8000
    assert made(2, "--port", "81").api_port == made(2, "--port=81").api_port == 81
    assert made(2, engine="dynamo")._replace(dynamo_port="82").api_port == 82
    assert made(2, "--port", "81", engine="dynamo")._replace(dynamo_port="82").api_port == 81


def dry(*arguments: str, **environment: str) -> str:
    done = launch(sys.executable, "launch", "--dry-run", *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_dry_run_prints_every_node() -> None:
    said = dry("-tp", "8", "-pp", "3", "--", "m", **{**LWS, "LWS_GROUP_SIZE": "3"})
    assert [line for line in said.splitlines() if not line.startswith(" ")] == [
        "node 0 (head)",
        "node 1 (worker, this one)",
        "node 2 (worker)",
    ]
    assert "VLLM_HOST_IP=NODE2_IP" in said
    words = ("--head", "--head-ip", "10.0.0.1", "--json", "--", "m", "--help")
    document = json.loads(dry(*words))
    assert document["rank"] == 0 and document["source"] == "--head"
    assert document["nodes"][1]["commands"][0][-2:] == ["--headless", "--help"]


def test_the_shell_script_is_the_same() -> None:
    script = CHECKOUT / "launch/multi_node.sh"
    words = [str(script), "--worker", "--head-ip", "10.0.0.1", "--dry-run"]
    variables = environ(MODEL="m", TENSOR_PARALLEL_SIZE="16", NNODES="2", PYTHON=sys.executable)
    done = subprocess.run(words, env=variables, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "serve m --tensor-parallel-size 16 --pipeline-parallel-size 1" in done.stdout
    assert "--node-rank 1 --master-addr 10.0.0.1" in done.stdout


# Preflight


def root(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


CARDS = tuple(f"dev/accel/accel{number}" for number in range(8))
CONTROL = tuple(f"dev/accel/accel_controlD{number}" for number in range(8))
GPUS = ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm")


@pytest.mark.parametrize(
    ("names", "environment", "kind", "number"),
    [
        ((*CARDS, *CONTROL), {}, "Gaudi", 8),
        (CARDS, {"HABANA_VISIBLE_MODULES": "0,1,2,3"}, "Gaudi", 4),
        (CARDS, {"HABANA_VISIBLE_MODULES": "all"}, "Gaudi", 8),
        (GPUS, {}, "NVIDIA", 2),
        (GPUS, {"CUDA_VISIBLE_DEVICES": ""}, "NVIDIA", 0),
        (GPUS, {"CUDA_VISIBLE_DEVICES": "1"}, "NVIDIA", 1),
        (("dev/dri/renderD128",), {}, "", 0),
        (("dev/dri/renderD128", "dev/kfd"), {}, "AMD", 1),
        ((), {}, "", 0),
    ],
)
def test_devices_are_counted(
    tmp_path: Path,
    names: tuple[str, ...],
    environment: dict[str, str],
    kind: str,
    number: int,
) -> None:
    found = devices.find(environment, root(tmp_path, *names))
    assert (found.kind, found.number) == (kind, number)


HERE = Place("127.0.0.1", "lo")
WORKER = Group(1, 2, "a", "--rank")


def kinds(settings: Settings, folder: Path, cpu: bool = False, **environment: str) -> list[str]:
    settings = settings._replace(model=str(root(folder, "model/config.json") / "model"))
    found = preflight.check(WORKER, settings, HERE, 1, cpu, environment, (), folder)
    return [problem.kind for problem in found]


def test_too_few_devices(tmp_path: Path) -> None:
    folder = root(tmp_path, *CARDS)
    assert kinds(made(2, tensor=8, pipeline=2), folder) == []
    assert kinds(made(2, tensor=16, pipeline=2), folder) == ["too-few-devices"]
    assert kinds(made(2, tensor=16, pipeline=2), folder, cpu=True) == []
    assert kinds(made(2, tensor=16, pipeline=2), root(tmp_path / "none", "x")) == []


def test_a_warning_where_tensor_parallelism_has_no_fast_link(tmp_path: Path) -> None:
    (warning,) = preflight.warnings(made(2, tensor=16, pipeline=1), {}, tmp_path)
    assert "--tensor-parallel-size 8 --pipeline-parallel-size 2" in warning
    assert not preflight.warnings(made(2, tensor=8, pipeline=2), {}, tmp_path)
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert not preflight.warnings(made(2, tensor=16, pipeline=1), {}, tmp_path)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("# options\nmax-model-len: 10\nheadless: true\n", "headless"),
        ("  tensor_parallel_size: 8\n  port: 1\n", "tensor_parallel_size"),
        ('"port" : 81\n', "port"),
        ('{"seed": 1, "nnodes": 3}', "nnodes"),
        ("kv:\n  port: 1\n  model: b\nseed: 1\nspeculative-config: {model: a, port: 1}\n", ""),
    ],
)
def test_a_file_of_options(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    found = list(preflight._file_of_options(made(2, "--config", str(file))))
    assert [problem.kind for problem in found] == ["config-file"] * len(found)
    assert bool(found) is bool(key) and (not key or f"sets {key}, and" in found[0].what)
    (absent,) = preflight._file_of_options(made(2, f"--config={tmp_path}/none"))
    assert "cannot be read" in absent.what


def test_service_links(tmp_path: Path) -> None:
    assert kinds(made(), tmp_path, VLLM_PORT="tcp://10.0.0.1:80") == ["service-link"]
    assert kinds(made(), tmp_path, VLLM_PORT="29700") == []


@pytest.mark.parametrize("engine", ["ray", "dynamo"])
def test_an_engine_that_is_not_installed(tmp_path: Path, engine: str) -> None:
    settings = made(2, engine=engine)._replace(model=str(root(tmp_path, "m/config.json") / "m"))
    (problem,) = preflight.check(WORKER, settings, HERE, 1, True, {}, (str(tmp_path),), tmp_path)
    assert problem.kind == "no-engine"
    for folder in ("ray/scripts", "dynamo/vllm"):
        (tmp_path / folder).mkdir(parents=True)
    assert not preflight.check(WORKER, settings, HERE, 1, True, {}, (str(tmp_path),), tmp_path)


def test_addresses() -> None:
    assert address.lookup("127.0.0.9") == ["127.0.0.9"] and address.lookup("nobody.invalid") == []
    assert address.is_local("127.0.0.9") and not address.is_local("192.0.2.1")
    assert address.interface_of("127.0.0.1") == "lo" and not address.interface_of("192.0.2.1")
    assert address.toward("127.0.0.1") == "127.0.0.1"


def test_a_name_with_several_addresses_is_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "lookup", lambda name: ["10.0.0.1", "10.0.0.2"])
    with pytest.raises(FixesError, match=r"several-addresses.*10\.0\.0\.1, 10\.0\.0\.2"):
        address.resolve("service", 0, print)


def test_a_name_is_looked_up_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[], [], ["10.0.0.1"], ["10.0.0.2"]]
    monkeypatch.setattr(address, "lookup", lambda name: answers.pop(0))
    told: list[str] = []
    assert address.resolve("head", float("inf"), told.append, pause=0) == "10.0.0.1"
    assert len(told) == 1


# Model and facts


def test_models(tmp_path: Path) -> None:
    here = tmp_path / "model"
    assert "is not there" in model.absent(str(here), {})
    here.mkdir()
    assert "holds neither" in model.absent(str(here), {})
    (here / "config.json").write_text("{}")
    assert not model.absent(str(here), {}) and not model.absent("some/model", {})
    first = model.identify(str(here), "", {})
    (here / "model.safetensors").write_bytes(b"1")
    second = model.identify(str(here), "", {})
    assert first.config == second.config and first.weights != second.weights
    (here / "config.json").write_text("{ }")
    assert model.identify(str(here), "", {}).config != second.config


def test_weights_that_are_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").symlink_to("/nowhere/blob")
    with pytest.raises(FixesError, match=r"no-model.*model\.safetensors cannot be read"):
        model.identify(str(tmp_path), "", {})


def test_names_that_no_file_has(tmp_path: Path) -> None:
    long = made()._replace(model="a/" + "x" * 5000)
    for name in (long.model, "~nobody-of-this-name/model"):
        found = list(preflight._model(long._replace(model=name), {"HF_HUB_OFFLINE": "1"}))
        assert [problem.kind for problem in found] == ["no-model"]


def test_a_model_of_a_repository(tmp_path: Path) -> None:
    cached = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert "HF_HUB_OFFLINE" in model.absent("some/model", cached)
    folder = tmp_path / "hub/models--some--model"
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc")
    assert not model.absent("some/model", cached)
    assert model.identify("some/model", "", cached).config
    assert model.identify("some/model", "v2", cached) == Identity("some/model@v2")


def test_differences_show_both_sides() -> None:
    versions = {"vLLM": "0.30.0", "Python": "3.12.1", "torch": "2.13.0"}
    one = facts.gather(versions, "a" * 64, Identity("m", "c" * 64, "w" * 64), made(), {})
    two = facts.gather(versions, "b" * 64, Identity("m", "", "v" * 64), made(), {})
    known = [("node 0", one), ("node 1", one), ("node 2", two)]
    found = [problem.what for problem in facts.differences(known)]
    assert found == [
        "fixes: node 0 has sha256:aaaaaaaaaaaa, node 2 has sha256:bbbbbbbbbbbb",
        "model weights: node 0 has sha256:wwwwwwwwwwww, node 2 has sha256:vvvvvvvvvvvv",
    ]
    assert not facts.differences([("node 0", one), ("node 1", one)])
    other = {**one, "vLLM": "0.32.0"}
    (problem,) = facts.differences([("node 0", one), ("node 1", other)])
    assert "vLLM: node 0 has 0.30.0, node 1 has 0.32.0" in problem.what


def test_every_fact_counts() -> None:
    versions = {"vLLM": "1", "Python": "1", "torch": "1"}
    one = facts.gather(versions, "d", Identity("m", "c", "w"), made(), {})
    assert len(one) == 14
    for name in one:
        assert facts.differences([("a", one), ("b", {**one, name: "other"})]), name


def shown(*arguments: str, **environment: str) -> dict[str, str]:
    """What is compared of an engine's options and variables."""
    return options.compared(arguments, 1, environment)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("--max-model-len", "4096"), ("--max_model_len=4096",)),
        (("--max-model-len", "1", "--max-model-len", "2"), ("--max-model-len", "2")),
        (("--seed", "-1", "--enforce-eager"), ("--enforce-eager", "--seed=-1")),
        (("-O3",), ("-O", "3")),
        (("-O3",), ("--optimization-level=3",)),
        (("-q", "fp8"), ("--quantization", "fp8")),
        (("--no-enable-prefix-caching",), ("--no_enable_prefix_caching",)),
        (("-sc", '{"a": 1, "b": [2]}'), ("--speculative-config", '{"b":[2],"a":1}')),
        (("--hf-overrides.rope_scaling.factor", "2"), ("--hf_overrides.rope_scaling.factor", "2")),
        (("--port", "1", "--api-key", "a", "b", "--host=x"), ()),
        (("--gpu-memory-utilization", "0.9"), ("--download-dir", "/models")),
    ],
)
def test_options_that_mean_the_same(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert shown(*one) == shown(*other)


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (("--max-model-len", "4096"), ("--max-model-len", "2048"), "max-model-len"),
        (("--kv-cache-dtype", "fp8"), (), "kv-cache-dtype"),
        (("--enforce-eager",), ("--no-enforce-eager",), "enforce-eager"),
        (("--seed", "-1"), ("--seed", "-2"), "seed"),
        (("-sc", '{"num": 3}'), ("-sc", '{"num": 4}'), "speculative-config"),
        (("-sc", "x" * 300 + "1"), ("-sc", "x" * 300 + "2"), "speculative-config"),
        (("--hf-overrides.a", "1"), ("--hf-overrides.b", "1"), "hf-overrides.a"),
    ],
)
def test_options_that_differ(one: tuple[str, ...], other: tuple[str, ...], name: str) -> None:
    known = [("node 0", shown(*one)), ("node 1", shown(*other))]
    assert known[0][1].keys() | known[1][1].keys() >= {f"option --{name}"}
    assert f"option --{name}: node 0 has " in facts.differences(known)[0].what
    assert all(len(value) <= 200 for _, values in known for value in values.values())


def test_an_option_that_the_launcher_gives_is_the_same_as_given() -> None:
    given = options.compared(("--no-async-scheduling",), 2, {})
    assert given == options.compared((), 2, {}) == {"option --async-scheduling": "no"}
    assert options.compared(("--async-scheduling",), 2, {}) != given
    assert not options.compared((), 1, {})


def test_a_file_of_options_counts_by_what_it_says(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml")]
    for path, text in zip(paths, ("seed: 1", "seed: 1", "seed: 2"), strict=True):
        path.write_text(text)
    one, same, other = (shown("--config", str(path)) for path in paths)
    assert one == same != other


def test_variables_that_change_what_a_stage_does() -> None:
    told = shown(VLLM_PP_LAYER_PARTITION="20,10", VLLM_HOST_IP="10.0.0.1")
    assert told == {"variable VLLM_PP_LAYER_PARTITION": "20,10"}


def test_under_ray_only_the_head_has_options() -> None:
    versions = {"vLLM": "1", "Python": "1", "torch": "1"}
    settings = made(2, engine="ray")
    told = facts.gather(versions, "d", Identity("m"), settings, {})
    assert not [name for name in told if name.startswith("option ")]


# Probes


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"[" * 100_000, b"\xff", b'{"data": [1]}'])
def test_an_answer_that_is_none_of_vllms(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(health, "_ask", lambda *asked: (200, body))
    said = health.complete(health.Endpoint("127.0.0.1", 1, False, ""))
    assert said.startswith("no completion of one token: ")


def test_a_frontend_without_an_engine_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_ask", lambda *asked: (200, b'{"object":"list","data":[]}'))
    where = health.Endpoint("127.0.0.1", 1, False, "")
    assert health.complete(where) == "no model is served yet"


class Handler(http.server.BaseHTTPRequestHandler):
    """An API of one model."""

    def address_string(self) -> str:
        return ""

    def log_message(self, *given: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"choices": [{"text": "b"}] if asked["model"] == "small" else []})

    def answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_an_engine_that_serves_on_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "api")
    where = health.endpoint(made(2, "--uds", path), {})
    assert "no completion of one token: " in health.complete(where)
    with socketserver.UnixStreamServer(path, Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert health.complete(where) == ""
        server.shutdown()


def test_a_refusal_of_many_nodes_is_a_line_that_they_take() -> None:
    """Fifty nodes that differ in everything: a longer line than nodes accept."""
    said: list[str] = []
    told: list[dict[str, object]] = []
    head = Head(link.card(0, "10.0.0.1", {}), 50, b"token", said.append)
    head.tell = lambda **message: told.append(message)  # type: ignore[method-assign]
    for rank in range(1, 50):
        what = [f"fact {number}: node {rank} differs, {'x' * 400}" for number in range(12)]
        head._refuse([Problem(ExitCode.NOT_STARTED, "nodes-differ", one) for one in what])
    assert max(len(json.dumps(message)) for message in told) < wire.LIMIT
    assert "and 568 more" in json.dumps(told[-1])


def test_a_node_of_another_replica_is_sent_off() -> None:
    """One whose name server still says the address of a pod that is gone, all of one token."""
    told: list[dict[str, object]] = []

    class Channel:
        send = staticmethod(told.append)
        abort = close = staticmethod(lambda: None)

        async def receive(self) -> None:
            raise wire.WireError("closed the connection")

    async def come(replica: str) -> None:
        said: list[str] = []
        one = link.card(1, "10.0.0.2", {"head address": "10.0.0.1"}, replica)
        head = Head(link.card(0, "10.0.0.1", {}, "big-0.big.default"), 2, b"token", said.append)
        await head._take(one, Channel())  # type: ignore[arg-type]
        stayed.append("is here, 2 of 2" in said[0])

    stayed: list[bool] = []
    for replica in ("big-0.big.default", "", "big-1.big.default"):
        asyncio.run(come(replica))
    assert stayed == [True, True, False]
    assert told == [{"busy": "is of another replica: big-0.big.default"}]
    assert Group(0, 2, "a", "LeaderWorkerSet").replica == "a"
    assert Group(0, 2, "a", "torchrun").replica == Group(0, 2, "a", "--head").replica == ""


def test_a_head_that_waits_for_others_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "REFUSING", 0.3)

    async def beat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await wire.challenge(reader, writer, b"token")
        with contextlib.suppress(wire.WireError):
            while await channel.receive():
                channel.send({"beat": 1})
        channel.abort()

    async def meet() -> None:
        server = await asyncio.start_server(beat, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        worker = Worker(link.card(1, "127.0.0.1", {}), "127.0.0.1", port, b"token", said.append)
        with pytest.raises(FixesError, match="in time: has not said that all are here"):
            await asyncio.wait_for(worker.meet(time.monotonic() + 0.5), 10)
        await worker.close()
        server.close()
        await asyncio.sleep(0.1)

    said: list[str] = []
    asyncio.run(meet())
    assert said[0] == "the head at 127.0.0.1 is here; waiting for its word to start"


def test_an_address_has_one_spelling() -> None:
    assert address.lookup("fd00:0::0001") == ["fd00::1"]
    group = Group(0, 2, "::1", "--head")
    assert preflight.place(group, "::1", "0:0::1", "", "").ip == "::1"


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(address, "lookup", lambda name: [str(answer.wait(30))])
    told: list[str] = []
    start = time.monotonic()
    with pytest.raises(FixesError, match="no-address"):
        address.resolve("head", start + 2.5, told.append)
    assert told and time.monotonic() - start < 4
    answer.set()


def test_neither_is_it_at_the_end_of_a_program() -> None:
    code = """
import asyncio, sys, time
from fixes.launch import address
address.lookup = lambda name: time.sleep(60)
async def stopped():
    await asyncio.wait_for(address.lookup_beside("head"), 0.2)
try:
    asyncio.run(stopped())
except asyncio.TimeoutError:
    sys.exit(7)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, env=environ(), timeout=20)
    assert done.returncode == 7


def test_who_makes_room_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        transport = property(lambda self: self)

        def __init__(self) -> None:
            self.aborted = False

        def abort(self) -> None:
            self.aborted = True

    monkeypatch.setattr(strangers, "LIMIT", 4)
    now = [0.0]
    monkeypatch.setattr(strangers.time, "monotonic", lambda: now[0])
    said: list[str] = []
    there = strangers.Strangers(said.append)
    crowd = [Writer() for _ in range(5)]
    assert [there.admit(one, "a") for one in crowd] == [True] * 4 + [False]  # type: ignore[arg-type]
    node = Writer()
    assert there.admit(node, "b") and node in there  # type: ignore[arg-type, operator]
    assert [one.aborted for one in crowd] == [True, False, False, False, True]
    again = Writer()
    assert not there.admit(again, "a")  # type: ignore[arg-type]
    now[0] = 1.5
    assert there.admit(again, "a") and crowd[1].aborted  # type: ignore[arg-type]
    assert not node.aborted
    for _ in range(1000):
        there.refuse("a", "says nothing")
    assert len(said) == 12 and said[-1].endswith("it says nothing (1000 by now)")


# The wire


class Ends:
    """A server's and a client's end of one connection, on loopback."""

    async def __aenter__(self) -> Ends:
        accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        accepted = asyncio.get_running_loop().create_future()
        self.server = await asyncio.start_server(
            lambda *ends: accepted.set_result(ends), "127.0.0.1", 0, limit=wire.LIMIT
        )
        port = self.server.sockets[0].getsockname()[1]
        self.client = await asyncio.open_connection("127.0.0.1", port, limit=wire.LIMIT)
        self.head = await accepted
        return self

    async def __aexit__(self, *exception: object) -> None:
        for _, writer in (self.client, self.head):
            writer.transport.abort()
        self.server.close()
        await asyncio.sleep(0)

    async def known(self) -> tuple[wire.Channel, wire.Channel]:
        return await asyncio.gather(
            wire.challenge(*self.head, b"token"), wire.introduce(*self.client, b"token")
        )


def test_messages_go_both_ways() -> None:
    async def talk() -> None:
        async with Ends() as ends:
            head, worker = await ends.known()
            for number in range(3):
                worker.send({"number": number, "text": "é\n"})
                head.send({"number": -number})
                assert await head.receive() == {"number": number, "text": "é\n"}
                assert await worker.receive() == {"number": -number}

    asyncio.run(talk())


@pytest.mark.parametrize("what", ["unsigned", "again", "turned", "too long", "no object"])
def test_lines_that_are_not_the_next_one(what: str) -> None:
    async def talk() -> None:
        async with Ends() as ends:
            head, worker = await ends.known()
            sent: list[bytes] = []
            raw = ends.client[1]
            write = raw.write
            raw.write = sent.append  # type: ignore[method-assign, assignment]
            worker.send({"number": 1})
            if what == "again":
                write(sent[0])
                assert await head.receive() == {"number": 1}
                write(sent[0])
            elif what == "turned":
                head.send({"number": 1})
                write(await ends.client[0].readline())
            elif what == "too long":
                write(b"x" * (wire.LIMIT + 10) + b"\n")
            elif what == "no object":
                worker.send([1])  # type: ignore[arg-type]
                write(sent[0])
                assert await head.receive()
                write(sent[1])
            else:
                write(b"0" * 64 + b" " + sent[0].partition(b" ")[2])
            with pytest.raises(wire.WireError):
                await head.receive()

    asyncio.run(talk())


def test_tokens_that_differ() -> None:
    async def talk() -> None:
        async with Ends() as ends:
            results = await asyncio.gather(
                wire.challenge(*ends.head, b"token"),
                wire.introduce(*ends.client, b"other"),
                return_exceptions=True,
            )
            assert all(isinstance(result, wire.TokenError) for result in results)

    asyncio.run(talk())


def test_a_head_that_does_not_know_the_token_is_found_out() -> None:
    """It may say that all is well: its proof tells."""

    async def talk() -> None:
        async with Ends() as ends:
            reader, writer = ends.head
            writer.write(json.dumps({"vllm-fixes": 1, "nonce": "0" * 64}).encode() + b"\n")
            writer.write(json.dumps({"proof": "0" * 64}).encode() + b"\n")
            with pytest.raises(wire.TokenError):
                await wire.introduce(*ends.client, b"token")
            answer = json.loads(await reader.readline())
            writer.write(b"")
            assert answer["proof"] != "0" * 64

    asyncio.run(talk())


@given(st.binary(max_size=600))
def test_whatever_a_stranger_sends_is_refused(data: bytes) -> None:
    async def talk() -> None:
        async with Ends() as ends:
            ends.client[1].write(data + b"\n")
            with pytest.raises(wire.WireError):
                await wire.challenge(*ends.head, b"token")

    asyncio.run(talk())


def test_a_slow_stranger_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "INTRODUCTION", 0.2)

    async def talk() -> None:
        async with Ends() as ends:
            with pytest.raises(wire.WireError, match="within"):
                await wire.challenge(*ends.head, b"token")

    asyncio.run(talk())


# What it is made of


def test_the_launcher_needs_the_standard_library_only() -> None:
    for path in (*CHECKOUT.glob("fixes/launch/*.py"), CHECKOUT / "fixes/commands/launch.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top == "fixes" or top in sys.stdlib_module_names, (path, name)
                assert not name.startswith(("fixes.authoring", "pickle")), (path, name)


def test_a_probe_imports_little() -> None:
    """It runs every few seconds."""
    code = "import sys; from fixes.commands import probe; from fixes.launch import plan; "
    code += (
        "print([m for m in ('fixes.tree', 'fixes.application', 'subprocess') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, env=environ()
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    assert os.access(CHECKOUT / "launch/multi_node.sh", os.X_OK)
