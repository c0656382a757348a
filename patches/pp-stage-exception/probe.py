"""Let calls fail on a worker that owes no reply, and on the one that owes it."""

import logging
import sys
from types import SimpleNamespace

METHODS = ("execute_model", "sample_tokens", "execute_dummy_batch")
SILENT, ANSWERING = 0, 1


class NoMoreCallsError(Exception):
    """The worker came back for another call."""


class StageFailedError(RuntimeError):
    """What the stage raises."""


def probe() -> tuple[int, str]:
    logging.disable(logging.CRITICAL)  # the worker logs each traceback
    try:
        for method in METHODS:
            if not ends(method, SILENT, []):
                return 1, f"an exception in {method}() on a stage that owes no reply is dropped"
            replies: list = []
            if ends(method, ANSWERING, replies) or len(replies) != 1:
                return 1, f"an exception in {method}() on the answering stage is not a reply"
    finally:
        logging.disable(logging.NOTSET)
    return 0, "an exception on a stage that owes no reply ends its worker"


def ends(method: str, rank: int, replies: list) -> bool:
    """Whether the worker of `rank` ends when `method` fails there."""
    from vllm.v1.executor.multiproc_executor import WorkerProc

    def fail(*args):
        raise StageFailedError(method)

    calls = iter([(method, (), {}, ANSWERING)])

    def dequeue(**kwargs):
        for call in calls:
            return call
        raise NoMoreCallsError

    worker = object.__new__(WorkerProc)
    worker.rank = rank
    worker.worker = SimpleNamespace(**{method: fail})
    worker.rpc_broadcast_mq = SimpleNamespace(dequeue=dequeue)
    worker.handle_output = replies.append
    try:
        worker.worker_busy_loop()
    except StageFailedError:
        return True
    except NoMoreCallsError:
        return False
    raise RuntimeError("the worker ended without an exception")


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
