"""Does a remote queue start when the port that was found to be free is taken meanwhile?

The queue's search for a free port answers with one that another socket listens on: the
moment between looking and binding, made certain.
"""

import errno
import socket
import sys

TIMEOUT_MS = 4000


def _handshake(queue):
    """A reader elsewhere must get through to the advertised address, or this raises."""
    import zmq
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    reader = MessageQueue.create_from_handle(queue.export_handle(), -1)
    for end in (queue.remote_socket, reader.remote_socket):
        end.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    queue.wait_until_ready()
    reader.wait_until_ready()
    queue.enqueue("message")
    message = reader.dequeue(timeout=TIMEOUT_MS / 1000)
    if message != "message":
        raise RuntimeError(f"the reader got {message!r}")


def _addresses():
    """Loopback addresses of this machine, IPv6 where it has one."""
    yield "127.0.0.1", socket.AF_INET
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return
    yield "::1", socket.AF_INET6


def probe() -> tuple[int, str]:
    """Make a queue for another node, and a reader of it."""
    import zmq
    from vllm.distributed.device_communicators import shm_broadcast

    absent = object()
    search = getattr(shm_broadcast, "get_open_port", absent)
    try:
        for address, family in _addresses():
            with socket.create_server((address, 0), family=family) as taken:
                port = taken.getsockname()[1]
                shm_broadcast.get_open_port = lambda port=port: port
                try:
                    queue = shm_broadcast.MessageQueue(1, 0, connect_ip=address)
                except zmq.ZMQError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    return 1, f"the queue binds a port that is taken: {error}"
                _handshake(queue)
    finally:
        if search is absent:
            del shm_broadcast.get_open_port
        else:
            shm_broadcast.get_open_port = search
    return 0, "the bind picks the port, and the handle names that one"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
