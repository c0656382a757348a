"""Does the CPU communicator take shared memory for a group that spans two hosts?

Two processes over gloo on loopback ask the real function; both have the same
``VLLM_DIST_IDENT``, as with one init method or one VLLM_PORT for both hosts. Where two
hosts are needed, ``in_the_same_node_as`` answers for them; everything else is real.
"""

import ctypes
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
from types import SimpleNamespace

PR_SET_PDEATHSIG = 1
LIMIT_S = 8.5  # the runner's is 10 s
WORLD = 2
CASES = {  # name: (the ranks share a host, their names are equal, shared memory is right)
    "two hosts with equal names": (False, True, False),
    "one host": (True, True, True),
    "one host with different names": (True, False, False),
}


def _shares(rank, one_host, equal_names):
    import torch.distributed as dist
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    real = parallel_state.in_the_same_node_as

    def on_two_hosts(pg, source_rank=0):
        real(pg, source_rank)  # a collective: a rank that does not call it hangs the others
        return [other == source_rank for other in range(dist.get_world_size(pg))]

    os.environ["VLLM_DIST_IDENT"] = "29700" if equal_names else f"2970{rank}"
    parallel_state.in_the_same_node_as = real if one_host else on_two_hosts
    group = dist.group.WORLD
    communicator = SimpleNamespace(
        unique_name="pp:0",
        ranks=list(range(WORLD)),
        rank=rank,
        world_size=WORLD,
        cpu_group=group,
        device_group=group,
    )
    try:
        return CpuCommunicator._all_group_ranks_share_shm_group_name(communicator)
    finally:
        parallel_state.in_the_same_node_as = real


def _rank(rank, store):
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    return {
        name: _shares(rank, one_host, equal_names)
        for name, (one_host, equal_names, _) in CASES.items()
    }


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
    """Compare each rank's choice with where the ranks are."""
    import torch.distributed as dist
    from vllm.distributed.device_communicators import cpu_communicator  # noqa: F401

    if not (dist.is_available() and dist.is_gloo_available()):
        return 77, "no-gloo: torch was built without gloo"
    wrong = []
    for rank, answers in sorted(_results().items()):
        for name, (_, _, right) in CASES.items():
            if answers[name] != right:
                wrong.append(f"{name}: rank {rank} {'takes' if answers[name] else 'refuses'} it")
    if wrong:
        return 1, "shared memory: " + "; ".join(wrong)
    return 0, "shared memory only where all ranks see the same one"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
