"""Does an EPLB communicator of a later pipeline stage reach the ranks of its own EP group?

Four processes over gloo on loopback, as two stages of two ranks: the second stage's EP group
is ranks 2 and 3. Those two exchange weights through the real communicators, each with that
gloo group in place of its own backend's: which rank a peer is does not depend on the
backend. Only the streams and the pinned memory of a device are left out.
"""

import contextlib
import ctypes
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
from unittest.mock import MagicMock, patch

PR_SET_PDEATHSIG = 1
LIMIT_S = 8.5  # the runner's is 10 s
WORLD, STAGE = 4, (2, 3)
COMMUNICATORS = (  # the last one since 0.31.0
    "TorchDistNcclEplbCommunicator",
    "TorchDistGlooStagedEplbCommunicator",
    "TorchDistXCCLStagedEplbCommunicator",
)


def _exchange(communicator, rank):
    """Send to the other rank of the group and receive from it; the weights that came."""
    import torch

    other = 1 - STAGE.index(rank)
    received = [torch.zeros(2), torch.zeros(3)]
    sent = [torch.full((2,), float(rank)), torch.full((3,), 10.0 * rank)]
    communicator.add_send(sent, other, expert_id=0)
    communicator.add_recv(received, other, expert_id=1)
    communicator.execute()
    return [tensor.tolist() for tensor in received]


def _without_device(module):
    """No streams and no pinned memory, for there may be no device."""
    import torch

    stack = contextlib.ExitStack()
    for owner in (torch.cuda, torch.accelerator):
        stack.enter_context(patch.object(owner, "current_stream", MagicMock()))
    none = contextlib.nullcontext
    stack.enter_context(patch.object(torch.cuda, "stream", lambda _stream: none()))
    stack.enter_context(patch.object(module, "device_stream", lambda _stream: none(), create=True))
    stack.enter_context(patch.object(module, "PIN_MEMORY", False, create=True))
    stack.enter_context(patch.object(module, "is_local_first_rank", lambda: False))
    return stack


def _rank(rank, store):
    """What goes wrong in each communicator, for a rank of the stage."""
    import torch.distributed as dist
    from vllm.distributed.eplb import eplb_communicator

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    group = dist.new_group(list(STAGE), backend="gloo")
    faults = []
    if rank not in STAGE:
        return faults
    peer = STAGE[1 - STAGE.index(rank)]
    wanted = [[float(peer)] * 2, [10.0 * peer] * 3]
    with _without_device(eplb_communicator):
        for name in COMMUNICATORS:
            made = getattr(eplb_communicator, name, None)
            if made is None:
                continue
            try:
                received = _exchange(made(group), rank)
            except ValueError as error:
                if "is not part of group" not in str(error):
                    raise
                faults.append(f"{name}: {error}")
                continue
            if received != wanted:
                raise RuntimeError(f"{name} received {received}")
    return faults


def _fork(body):
    """Run ``body()`` in a child; its pid and the connection that brings its result."""
    here, there = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid:
        there.close()
        return pid, here
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            there.send(body())
        except BaseException as error:
            there.send(RuntimeError(f"{type(error).__name__}: {error}"))
        signal.pause()  # the other ranks may still talk to this one
    finally:
        os._exit(0)


def _results():
    """What each rank found. What went wrong in one, or took too long, is raised."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        deadline = time.monotonic() + LIMIT_S
        ranks = [_fork(lambda rank=rank: _rank(rank, store)) for rank in range(WORLD)]
        waiting = {connection: rank for rank, (_, connection) in enumerate(ranks)}
        results = {}
        try:
            while waiting:
                left = max(0, deadline - time.monotonic())
                ready = multiprocessing.connection.wait(list(waiting), left)
                if not ready:
                    raise TimeoutError(f"no word from ranks {sorted(waiting.values())}")
                for connection in ready:
                    result = connection.recv()
                    if isinstance(result, Exception):
                        raise result
                    results[waiting.pop(connection)] = result
        finally:
            for pid, connection in ranks:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                connection.close()
    return results


def probe() -> tuple[int, str]:
    """Exchange weights between the two ranks of a second stage."""
    import torch.distributed as dist
    from vllm.distributed.eplb import eplb_communicator  # noqa: F401

    if not (dist.is_available() and dist.is_gloo_available()):
        return 77, "no-gloo: torch was built without gloo"
    results = _results()
    faults = [f"rank {rank}: {fault}" for rank in STAGE for fault in results[rank]]
    if faults:
        return 1, "; ".join(faults)
    return 0, "each rank of a second stage receives its peer's weights"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
