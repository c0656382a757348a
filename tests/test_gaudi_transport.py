"""The Gaudi transport between real processes: several forwards in a step, in slices and whole.

Two stages of 1, 2 and 4 ranks with vLLM's own groups over gloo, on a CPU. The plugin is not
there: its transport is a module of its own, and needs two small ones of the plugin.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cache import venv

from fixes import catalogue

pytestmark = pytest.mark.e2e

SOURCE = Path(catalogue.__file__).parents[1] / "patches/gaudi-pp-transport/pp_transport.py"
SIZES = (1, 2, 4)
#: The leading shapes of the forwards of a step: two batches of prompts, decodes, one odd row.
FORWARDS = ((1, 256), (2, 64), (8, 1), (1, 1))
WIDTH = 6

SCRIPT = """
import json, os, sys, tempfile, types
from types import SimpleNamespace as Space

source, sizes, forwards, width = json.loads(sys.argv[1])
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch
import torch.distributed as dist

for name in ("vllm_gaudi", "vllm_gaudi.extension"):
    sys.modules[name] = types.ModuleType(name)
for name, values in {
    "vllm_gaudi.extension.logger": {"logger": lambda: None},
    "vllm_gaudi.extension.runtime": {"get_config": lambda: Space(flatten_input=False)},
}.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(values)
transport = types.ModuleType("vllm_gaudi.pp_transport")
exec(compile(open(source).read(), source, "exec"), vars(transport))
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.sequence import IntermediateTensors


def made(forward, shape):
    generator = torch.Generator().manual_seed(forward)
    hidden = torch.randn(*shape, width, generator=generator)
    return {
        "hidden_states": hidden.bfloat16(),
        "residual": hidden * 3,
        "ids": torch.arange(shape[0] * shape[1]).reshape(shape),
    }


def rank_of(rank, size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2 * size)
    world = Space(world_size=2 * size, cpu_group=dist.group.WORLD)
    pipeline = GroupCoordinator(
        [[one, one + size] for one in range(size)], 0, "gloo", False, group_name="pipeline"
    )
    stage = GroupCoordinator(
        [list(range(size)), list(range(size, 2 * size))], 0, "gloo", False, group_name="stage"
    )
    pipeline.use_cpu_custom_send_recv = False
    device = torch.device("cpu")
    stage.device_communicator = DeviceCommunicatorBase(
        stage.cpu_group, device, stage.device_group, "stage"
    )
    transport.get_pp_group = lambda: pipeline
    transport.get_tp_group = lambda: stage
    transport.get_world_group = lambda: world
    crossed = []
    plain = pipeline.send_tensor_dict

    def counted(tensors, **kwargs):
        crossed.append({k: v.numel() for k, v in tensors.items() if torch.is_tensor(v)})
        return plain(tensors, **kwargs)

    pipeline.send_tensor_dict = counted
    wrong = []
    for whole in (False, True):
        config = Space(compilation_config=Space(pass_config=Space(enable_sp=whole)))
        for forward, shape in enumerate(forwards):
            tensors = made(forward, shape)
            if pipeline.is_first_rank:
                assert transport.receive(None, None, False) is None
                transport.send(IntermediateTensors(tensors), config)
                continue
            given = transport.receive(Space(device=device), tensors["ids"], False).tensors
            if given.keys() != tensors.keys() or not all(
                torch.equal(given[k], v) and given[k].dtype == v.dtype for k, v in tensors.items()
            ):
                wrong.append((whole, forward))
    dist.barrier()
    return {"crossed": crossed, "wrong": wrong}


answers = {}
for size in sizes:
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(2 * size):
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    found = rank_of(rank, size, folder + "/store")
                    with open(f"{folder}/{rank}", "w") as stream:
                        json.dump(found, stream)
                    code = 0
                except BaseException as error:
                    print(f"rank {rank} of 2x{size}: {error!r}", file=sys.stderr)
                os._exit(code)
            pids.append(pid)
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0
        answers[size] = [json.load(open(f"{folder}/{rank}")) for rank in range(2 * size)]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> Any:
    """What each rank sent and got, by the number of ranks in a stage."""
    told = json.dumps([str(SOURCE), SIZES, FORWARDS, WIDTH])
    command = [venv("0.30.0") / "bin/python", "-c", SCRIPT, told]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    sys.stderr.write(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("size", SIZES)
def test_the_next_stage_is_given_what_was_sent(answers: Any, size: int) -> None:
    ranks = answers[str(size)]
    assert [rank["wrong"] for rank in ranks] == [[]] * 2 * size
    assert [len(rank["crossed"]) for rank in ranks] == ([2 * len(FORWARDS)] * size + [0] * size)


@pytest.mark.parametrize("size", SIZES)
def test_one_row_for_each_token_crosses_where_ranks_can_share_it(answers: Any, size: int) -> None:
    first = answers[str(size)][:size]
    for at, (rows, columns) in enumerate(FORWARDS):
        for name, width in (("hidden_states", WIDTH), ("residual", WIDTH), ("ids", 1)):
            count = rows * columns * width
            sliced = sum(rank["crossed"][at][name] for rank in first)
            whole = sum(rank["crossed"][len(FORWARDS) + at][name] for rank in first)
            assert whole == size * count
            assert sliced == (count if count % size == 0 else size * count)
