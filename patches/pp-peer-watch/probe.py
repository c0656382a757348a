"""Does a replica of two nodes notice that the other node is gone?

Every scenario runs in a forked process of its own, against a queue's writer in another
process over loopback TCP: a node that is killed closes its connections (SIGKILL), one
that loses its power does not (SIGSTOP: nothing answers heartbeats any more). The two
sides are the real ``WorkerProc.worker_main`` and ``MultiprocExecutor`` monitor, without
a model.
"""

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

NOTICED_S = 4.0  # noticing takes at most 2.2 s: heartbeats and one slice of the poll
HEARTBEAT_MS = {"REMOTE_HEARTBEAT_INTERVAL_MS": 200, "REMOTE_HEARTBEAT_TIMEOUT_MS": 1500}
STALL_S = 2.0  # longer than the heartbeat's timeout
PR_SET_PDEATHSIG = 1


def _fork(body):
    """Run ``body()`` in a child; return its pid and the pipe that brings its result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        # Ends with the process that started it, even while it is stopped.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(reader)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            result = body(writer)
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writer, pickle.dumps(result))
    finally:
        os._exit(0)


def _end(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _exits(pid):
    """The status that the process ends with by itself, or None if it does not."""
    deadline = time.monotonic() + NOTICED_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    return None


class _Writer:
    """The writing end of a queue with one reader on "another node"."""

    def __init__(self, says_ready=True, stalls=False):
        self.pid, pipe = _fork(lambda result: self._write(result, says_ready, stalls))
        self.handle = pickle.loads(os.read(pipe, 65536))
        os.close(pipe)

    @staticmethod
    def _write(result, says_ready, stalls):
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        queue = MessageQueue(1, 0, connect_ip="127.0.0.1")
        os.write(result, pickle.dumps(queue.export_handle()))
        if says_ready:
            queue.wait_until_ready()
        while stalls:  # one call that holds the interpreter's lock for very long
            sum(range(1_000_000_000))
        signal.pause()

    def kill(self):
        _end(self.pid)

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)


def _start_worker(handle, stuck):
    """A worker on the other node: its pid, its READY pipe and its parent's end."""
    import multiprocessing

    ready, ready_writer = multiprocessing.Pipe(duplex=False)
    death_pipe, parent = multiprocessing.Pipe(duplex=False)

    def body(_result):
        from vllm.distributed import parallel_state
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
        from vllm.v1.executor.multiproc_executor import WorkerProc

        parent.close()
        group = SimpleNamespace(rank=1, world_size=2, broadcast_obj=lambda _obj, _src: handle)
        parallel_state.in_the_same_node_as = lambda _group, source_rank=0: [True, False]

        def init(self, *_args, **_kwargs):
            self.rank = 1
            self.worker = SimpleNamespace(shutdown=lambda: None)
            self.rpc_broadcast_mq = MessageQueue.create_from_process_group(
                group, 1024, 2, blocking=False
            )
            self.worker_response_mq = SimpleNamespace(
                export_handle=lambda: None,
                wait_until_ready=lambda: None,
                shutdown=lambda: None,
            )
            self.peer_response_handles = []

        WorkerProc.__init__ = init
        if stuck:  # in a collective with a node that is gone
            os.environ["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] = "1"
            WorkerProc.worker_busy_loop = lambda _self: threading.Event().wait()
        config = SimpleNamespace(assigned_physical_gpu_ids=None, numa_bind=False)
        WorkerProc.worker_main(
            vllm_config=SimpleNamespace(parallel_config=config),
            ready_pipe=ready_writer,
            death_pipe=death_pipe,
        )

    pid, pipe = _fork(body)
    os.close(pipe)
    ready_writer.close()
    death_pipe.close()
    ready.recv()
    return pid, ready, parent


def _worker(event, says_ready=True, stalls=False, stuck=False):
    """Start leader and worker, let ``event(leader, parent)`` happen, see the worker end."""
    leader = _Writer(says_ready, stalls)
    worker, ready, parent = _start_worker(leader.handle, stuck)
    try:
        if says_ready:  # the worker closes this pipe once it has the leader's READY
            with contextlib.suppress(EOFError):
                ready.recv()
        time.sleep(STALL_S)
        if os.waitpid(worker, os.WNOHANG)[0]:
            return "gave up a leader that was merely busy"
        event(leader, parent)
        status = _exits(worker)
        if status is None:
            return "stayed"
        return "" if stuck or status == 0 else f"ended with status {status}"
    finally:
        _end(worker)
        leader.kill()


def _executor(handles):
    """The leader's executor: one local worker (a sentinel), the others elsewhere."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

    sentinel, local_worker = os.pipe()
    process = SimpleNamespace(sentinel=sentinel, name="local", exitcode=1, is_alive=lambda: False)
    handle = WorkerProc.wait_for_response_handle_ready(
        {"handle": SimpleNamespace(local_reader_ranks=[]), "peer_response_handles": handles},
        SimpleNamespace(proc=process, rank=0, death_writer=None),
    )
    executor = MultiprocExecutor.__new__(MultiprocExecutor)
    executor.workers = [handle]
    executor.is_failed = False
    executor.failures = []
    executor.failure_callback = lambda: executor.failures.append(time.monotonic())
    executor.rpc_broadcast_mq = None
    executor.start_worker_monitor()
    executor.response_mqs = list(handle.peer_worker_response_mqs)
    for queue in executor.response_mqs:
        queue.wait_until_ready()
    return executor, local_worker


def _wait_failed(executor):
    deadline = time.monotonic() + NOTICED_S
    while not executor.failures and time.monotonic() < deadline:
        time.sleep(0.05)
    return executor.is_failed and len(executor.failures) == 1


def _leader(event, stalls=False):
    """Two workers elsewhere; ``event(workers)`` must fail the executor, and with it the
    request that waits for an answer.
    """
    workers = [_Writer(), _Writer(stalls=stalls)]
    try:
        executor, _ = _executor([worker.handle for worker in workers])
        ended = threading.Event()

        def request(queue):
            with contextlib.suppress(RuntimeError):
                queue.dequeue()
            ended.set()

        threading.Thread(target=request, args=(executor.response_mqs[1],), daemon=True).start()
        time.sleep(STALL_S)
        if executor.is_failed:
            return "gave up a worker that was merely busy"
        event(workers)
        if not _wait_failed(executor):
            return "did not fail the executor"
        return "" if ended.wait(NOTICED_S) else "left the pending request waiting"
    finally:
        for worker in workers:
            worker.kill()


def _kill_all(workers):
    for worker in workers:
        worker.kill()


def _local_worker_dies():
    executor, local_worker = _executor([])
    os.close(local_worker)
    return "" if _wait_failed(executor) else "did not fail the executor"


def _regular_stop():
    worker = _Writer()
    try:
        executor, _ = _executor([worker.handle])
        executor.shutdown()
        worker.kill()
        time.sleep(0.5)
        return "was taken for a failure" if executor.is_failed else ""
    finally:
        worker.kill()


def _no_handshake():
    """A connection that breaks off before the writer spoke is not a lost writer."""
    from vllm.distributed.device_communicators import shm_broadcast

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        handle = shm_broadcast.Handle(remote_subscribe_addr=address)
        queue = shm_broadcast.MessageQueue.create_from_handle(handle, -1, heartbeat=True)
        lost = threading.Event()
        queue.watch_writer(lost.set)
        server.accept()[0].close()
        return "was taken for a lost node" if lost.wait(0.5) else ""


def _deadlines():
    """A reader's own time limit holds."""
    worker = _Writer()
    try:
        executor, _ = _executor([worker.handle])
        for limit in (0, 0.1, 0.7):
            started = time.monotonic()
            try:
                executor.response_mqs[0].dequeue(timeout=limit)
            except TimeoutError:
                if time.monotonic() - started > limit - 0.01:  # whole milliseconds
                    continue
            return f"of {limit} s was not kept"
        return ""
    finally:
        worker.kill()


SCENARIOS = {
    "leader killed: the worker": lambda: _worker(
        lambda leader, _parent: leader.kill(), stalls=True
    ),
    "leader without power: the worker": lambda: _worker(lambda leader, _parent: leader.stop()),
    "leader killed before its READY: the worker": lambda: _worker(
        lambda leader, _parent: leader.kill(), says_ready=False
    ),
    "leader killed: the stuck worker": lambda: _worker(
        lambda leader, _parent: leader.kill(), stuck=True
    ),
    "the worker's parent killed: the worker": lambda: _worker(
        lambda _leader, parent: parent.close()
    ),
    "worker node killed: the leader": lambda: _leader(_kill_all, stalls=True),
    "worker node without power: the leader": lambda: _leader(lambda workers: workers[1].stop()),
    "local worker dead: the leader": _local_worker_dies,
    "regular stop: it": _regular_stop,
    "no handshake yet: it": _no_handshake,
    "time limit": _deadlines,
}


def probe() -> tuple[int, str]:
    """Run every scenario, all at once."""
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.v1.executor import multiproc_executor  # noqa: F401  (the children use it)

    for name, value in HEARTBEAT_MS.items():
        setattr(shm_broadcast, name, value)
    running = {}
    deadline = time.monotonic() + 9
    for name, scenario in SCENARIOS.items():
        pid, pipe = _fork(lambda _result, scenario=scenario: scenario())
        running[pipe] = (name, pid)
    faults = []
    while running:
        ready, _, _ = select.select(list(running), [], [], max(0, deadline - time.monotonic()))
        for pipe in ready or list(running):
            name, pid = running.pop(pipe)
            data = os.read(pipe, 65536) if ready else b""
            os.close(pipe)
            _end(pid)
            outcome = pickle.loads(data) if data else "did not come to an end"
            if outcome:
                faults.append(f"{name} {outcome}")
    if faults:
        return 1, "; ".join(sorted(faults))
    return 0, "a lost node is noticed from both sides, a busy or stopping one is left alone"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
