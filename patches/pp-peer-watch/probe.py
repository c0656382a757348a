"""Does a replica of two nodes notice that the other node is gone?

Two processes are other nodes, with queues that are read over loopback TCP: one is killed,
which closes its connections (SIGKILL), the other falls silent as if without power (SIGSTOP:
nothing answers heartbeats any more). Their readers are the real ``WorkerProc.worker_main``,
a process each, and the real monitor of ``MultiprocExecutor``, without a model. Everything is
lost at once; whatever is noticed in the end is noticed, however slow the machine.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import patch

LIMIT_S = 8.0  # for all; noticing takes 2 s: a worker's grace period, or two heartbeats
HEARTBEATS = {"REMOTE_HEARTBEAT_INTERVAL_MS": 200, "REMOTE_HEARTBEAT_TIMEOUT_MS": 1000}
POLL_S = 0.02
PR_SET_PDEATHSIG = 1


class _FaultError(Exception):
    """A fault that leaves nothing to be tried."""


class _Process:
    """A fork that runs ``body(connection)``, with the other end of its connection."""

    def __init__(self, body):
        self.connection, there = multiprocessing.Pipe()
        self.status = None
        self.pid = os.fork()
        if self.pid:
            there.close()
            return
        status = 1
        try:
            # Ends with the process that started it, even while it is stopped.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self.connection.close()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            body(there)
            status = 0
        except BaseException as error:
            there.send(RuntimeError(f"{type(error).__name__}: {error}"))
        finally:
            os._exit(status)

    def receive(self, deadline, what):
        """The next message; an exception that came instead is raised."""
        if not self.connection.poll(max(0, deadline - time.monotonic())):
            raise TimeoutError(f"no word in time: {what}")
        try:
            message = self.connection.recv()
        except EOFError:
            raise EOFError(f"no more words: {what}") from None
        if isinstance(message, Exception):
            raise message
        return message

    def ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, self.status = os.waitpid(self.pid, 0)


def _node(connection, says_ready):
    """Another node: a queue for each reader, which says that it is ready or does not."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    queues = [MessageQueue(1, 0, connect_ip="127.0.0.1") for _ in says_ready]
    connection.send([queue.export_handle() for queue in queues])
    for queue, says in zip(queues, says_ready, strict=True):
        # A reader subscribes once its connection is made.
        queue.wait_until_ready() if says else queue.remote_socket.recv()
    connection.send("all readers are connected")
    signal.pause()


def _worker(connection, handle, death_pipe=None, heartbeats=False, stuck=False):
    """A worker whose leader is on another node."""
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.v1.executor.multiproc_executor import WorkerProc

    group = SimpleNamespace(rank=1, world_size=2, broadcast_obj=lambda _obj, _src: handle)
    parallel_state.in_the_same_node_as = lambda _group, source_rank=0: [True, False]

    def init(self, *_args, **_kwargs):
        self.rank = 1
        self.worker = SimpleNamespace(shutdown=lambda: None)
        with _short_heartbeats() if heartbeats else contextlib.nullcontext():
            self.rpc_broadcast_mq = shm_broadcast.MessageQueue.create_from_process_group(
                group, 1024, 2, blocking=False
            )
        self.worker_response_mq = SimpleNamespace(
            export_handle=lambda: None, wait_until_ready=lambda: None, shutdown=lambda: None
        )
        self.peer_response_handles = []

    WorkerProc.__init__ = init
    # The one that is stuck is ended by SIGALRM, soon; the others must end by themselves.
    os.environ["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] = "1" if stuck else "60"
    if stuck:  # in a collective with a node that is gone
        WorkerProc.worker_busy_loop = lambda _self: threading.Event().wait()
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(assigned_physical_gpu_ids=None, numa_bind=False),
        watchdog_config=SimpleNamespace(dump_dir=None),
    )
    WorkerProc.worker_main(
        vllm_config=config,
        ready_pipe=connection,
        death_pipe=death_pipe,
    )


def _short_heartbeats():
    from vllm.distributed.device_communicators import shm_broadcast

    return patch.multiple(shm_broadcast, create=True, **HEARTBEATS)


def _executor(handles):
    """The leader's executor: one local worker (a sentinel), the others elsewhere."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

    sentinel, local_worker = os.pipe()
    process = SimpleNamespace(sentinel=sentinel, name="local", exitcode=1, is_alive=lambda: False)
    try:
        handle = WorkerProc.wait_for_response_handle_ready(
            {"handle": SimpleNamespace(local_reader_ranks=[]), "peer_response_handles": handles},
            SimpleNamespace(proc=process, rank=0, death_writer=None),
        )
    except TypeError as error:
        if "heartbeat" not in str(error):
            raise
        raise _FaultError("a reader of another node's queue knows no heartbeats") from error
    executor = MultiprocExecutor.__new__(MultiprocExecutor)
    executor.workers = [handle]
    executor.local_worker = local_worker
    executor.is_failed = False
    executor.failures = []
    executor.failure_callback = lambda: executor.failures.append(time.monotonic())
    executor.rpc_broadcast_mq = None
    before = threading.enumerate()
    executor.start_worker_monitor()
    executor.watches = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name == "MessageQueueWriterMonitor"
    ]
    executor.response_mqs = list(handle.peer_worker_response_mqs)
    return executor


class _Request(threading.Thread):
    """A request that waits for an answer."""

    def __init__(self, queue):
        super().__init__(daemon=True)
        self.queue, self.outcome = queue, None

    def run(self):
        try:
            self.outcome = self.queue.dequeue()
        except Exception as error:
            self.outcome = error


def _time_limits(queue):
    """A reader's own time limits hold: none ends early, or as anything else."""
    for limit in (0, 0.05, 0.25):
        started = time.monotonic()
        try:
            queue.dequeue(timeout=limit)
        except TimeoutError:
            if time.monotonic() - started < limit - 0.01:  # whole milliseconds
                raise _FaultError(f"a reader's time limit of {limit} s ended early") from None


def _no_handshake(deadline):
    """A connection that breaks off before the writer spoke is not a lost writer."""
    from vllm.distributed.device_communicators import shm_broadcast

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        handle = shm_broadcast.Handle(remote_subscribe_addr=address)
        queue = shm_broadcast.MessageQueue.create_from_handle(handle, -1, heartbeat=True)
        lost = threading.Event()
        queue.watch_writer(lost.set)
        for _ in range(3):  # each comes after the end of the one before was seen
            server.settimeout(max(0.01, deadline - time.monotonic()))
            server.accept()[0].close()
        return lost.is_set()


def _dropped(deadline):
    """A reader that nobody keeps goes, with all its sockets."""
    from vllm.distributed.device_communicators import shm_broadcast

    # Nobody listens there: what counts is the end of the reader's own sockets.
    handle = shm_broadcast.Handle(remote_subscribe_addr="tcp://127.0.0.1:9")

    def make_and_drop():
        shm_broadcast.MessageQueue.create_from_handle(handle, -1, heartbeat=True)

    thread = threading.Thread(target=make_and_drop, daemon=True)
    thread.start()
    thread.join(max(0, deadline - time.monotonic()))
    return not thread.is_alive()


def _scenarios(deadline, running):
    """What went unnoticed or was noticed wrongly. ``running`` takes the processes."""

    def fork(body, *args, **options):
        running.append(_Process(lambda connection: body(connection, *args, **options)))
        return running[-1]

    killed = fork(_node, [False, True, True, True, True])
    silent = fork(_node, [True, True, True])
    starting, stuck, one, other, stopping = killed.receive(deadline, "the node to be killed")
    idle, orphan, mute = silent.receive(deadline, "the node to fall silent")
    workers = {
        "leader killed before its READY: the worker": fork(_worker, starting),
        "leader killed: the stuck worker": fork(_worker, stuck, stuck=True),
        "leader without power: the worker": fork(_worker, idle, heartbeats=True),
    }
    # Only now, since each fork would keep the parent's end open.
    death_pipe, parent = multiprocessing.Pipe(duplex=False)

    def orphaned(connection):
        parent.close()
        _worker(connection, orphan, death_pipe)

    workers["the worker's parent killed: the worker"] = fork(orphaned)
    leader, stopped, local = _executor([one, other]), _executor([stopping]), _executor([])
    with _short_heartbeats():
        dark = _executor([mute])
    for queue in leader.response_mqs:
        queue.wait_until_ready()
    _time_limits(leader.response_mqs[1])
    request = _Request(leader.response_mqs[1])
    request.start()
    for name, worker in workers.items():
        worker.receive(deadline, name)
    killed.receive(deadline, "the readers of the node to be killed")
    silent.receive(deadline, "the readers of the node to fall silent")
    for worker in list(workers.values())[1:]:
        with contextlib.suppress(EOFError):  # closed when the leader's READY has come
            worker.receive(deadline, "a worker's start")

    stopped.shutdown()
    parent.close()
    os.close(local.local_worker)
    killed.kill()
    os.kill(silent.pid, signal.SIGSTOP)
    seen = {f"{name} stays": worker.ended for name, worker in workers.items()}
    seen |= {
        "worker nodes killed: the leader does not fail the executor": lambda: leader.failures,
        "worker nodes killed: a pending request waits on": lambda: not request.is_alive(),
        "worker node without power: the leader does not fail the executor": lambda: dark.failures,
        "local worker dead: the leader does not fail the executor": lambda: local.failures,
    }
    while seen and time.monotonic() < deadline:
        time.sleep(POLL_S)
        seen = {name: happened for name, happened in seen.items() if not happened()}
    if seen:
        return sorted(seen)

    for name, worker in workers.items():
        if worker.status not in (0, signal.SIGALRM):
            raise RuntimeError(f"{name} ended with status {worker.status}")
    if not isinstance(request.outcome, RuntimeError):
        raise RuntimeError(f"the pending request ended with {request.outcome!r}")
    for watch in leader.watches + stopped.watches:
        watch.join(max(0, deadline - time.monotonic()))
    wrong = {
        "two worker nodes lost at once: the executor failed twice": len(leader.failures) > 1,
        "a regular stop was taken for a failure": stopped.is_failed,
        "a connection without a handshake was taken for a lost node": _no_handshake(deadline),
        "a reader that is not needed any more does not go away": not _dropped(deadline),
    }
    return [name for name, found in wrong.items() if found]


def _replica(connection):
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.REMOTE_READER_RECHECK_INTERVAL_MS = 100
    running = []
    try:
        connection.send(_scenarios(time.monotonic() + LIMIT_S, running))
    except _FaultError as error:
        connection.send([str(error)])
    finally:
        for process in running:
            process.kill()


def probe() -> tuple[int, str]:
    """Lose both nodes in a process of its own, whose threads may be left waiting."""
    from vllm.distributed.device_communicators import shm_broadcast  # noqa: F401
    from vllm.v1.executor import multiproc_executor  # noqa: F401  (the children use them)

    replica = _Process(_replica)
    try:
        faults = replica.receive(time.monotonic() + LIMIT_S + 1, "the scenarios")
    finally:
        replica.kill()
    if faults:
        return 1, "; ".join(faults)
    return 0, "a lost node is noticed from both sides, a regular stop is left alone"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
