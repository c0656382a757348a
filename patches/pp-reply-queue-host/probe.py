"""Is the reply queue of a rank on another host reachable from the reader?

Three processes over gloo on loopback ask the real function for their reply queues. The
group is ranks 1 and 2, so that a rank in the group is not the global rank. Where two
hosts are needed, ``in_the_same_node_as`` answers for them; everything else is real.
"""

import ctypes
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time

PR_SET_PDEATHSIG = 1
LIMIT_S = 8.5  # the runner's is 10 s
WORLD, READER, PEER = 3, 1, 2
CASES = {  # name: (devices that each host shows, the two ranks share a host)
    "two hosts of 8 devices, one rank on each": (8, False),
    "one host, one device for each rank": (1, True),
    "one host of 8 devices": (8, True),
}


def _reply_handles(group, devices, one_host):
    import torch.distributed as dist
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import interface

    real = parallel_state.in_the_same_node_as

    def on_two_hosts(pg, source_rank=0):
        real(pg, source_rank)  # a collective: a rank that does not call it hangs the others
        return [rank == source_rank for rank in range(dist.get_world_size(pg))]

    interface.get_assigned_physical_gpu_ids = lambda: list(range(devices))
    parallel_state.in_the_same_node_as = real if one_host else on_two_hosts
    shm_broadcast.get_ip = lambda: "127.0.0.1"
    try:
        _queue, handles = shm_broadcast.MessageQueue.create_from_process_group_single_reader(
            group, 1024, 2, reader_rank=READER
        )
    finally:
        parallel_state.in_the_same_node_as = real
    return [
        (handle.remote_subscribe_addr is not None, len(handle.local_reader_ranks))
        for handle in handles
    ]


def _rank(rank, store):
    """What the reader is handed in each case: (over TCP, readers by shared memory)."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    group = dist.new_group([READER, PEER], backend="gloo")
    replies = {}
    if rank in (READER, PEER):
        for name, (devices, one_host) in CASES.items():
            replies[name] = _reply_handles(group, devices, one_host)
    return replies


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
    """Compare what the reader is handed with where the ranks are."""
    import torch.distributed as dist
    from vllm.distributed.device_communicators import shm_broadcast  # noqa: F401

    if not (dist.is_available() and dist.is_gloo_available()):
        return 77, "no-gloo: torch was built without gloo"
    replies = _results()[READER]
    wrong = []
    for name, (_, one_host) in CASES.items():
        own, peer = replies[name]
        expected = (False, 1) if one_host else (True, 0)
        if own != (False, 1) or peer != expected:
            wrong.append(f"{name}: the reply queue is {'TCP' if peer[0] else 'shared memory'}")
    if wrong:
        return 1, "; ".join(wrong)
    return 0, "shared memory for ranks on the reader's host, TCP for the others"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
