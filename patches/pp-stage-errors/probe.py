"""Fail execute_model() under the batch queue, and answer with an exception without a text."""

import sys
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import MagicMock

CAUSE = "the last stage's own error"


def probe() -> tuple[int, str]:
    for answer in (engine(), reply()):
        if answer[0]:
            return answer
    return 0, "a failed stage's error reaches the leader"


def engine() -> tuple[int, str]:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.outputs import ModelRunnerOutput

    executed: Future = Future()
    executed.set_exception(RuntimeError(CAUSE))
    sampled: Future = Future()
    # What the V1 runner's sample_tokens() returns when execute_model() has failed.
    sampled.set_result(ModelRunnerOutput.with_kv_conn_output_only(None))

    core = MagicMock()
    core.batch_queue, core.batch_queue_size = deque(), 1
    # Sampling follows; the first is the name to 0.31, the second the one from 0.32.
    core.is_ec_consumer, core.is_mm_encoder_only, core.is_pooling_model = True, False, False
    core.scheduler.schedule.return_value = SimpleNamespace(
        total_num_scheduled_tokens=1, pending_structured_output_tokens=False
    )
    consequence = KeyError("request-0")
    core.scheduler.update_from_output.side_effect = consequence
    core.model_executor.execute_model.return_value = executed
    core.model_executor.sample_tokens.return_value = sampled
    try:
        EngineCore.step_with_batch_queue(core)
    except Exception as error:
        if CAUSE in str(error):
            return 0, ""
        if error is not consequence:
            raise
        return 1, f"a failed execute_model() is reported as {error!r}"
    raise RuntimeError("the engine asked for no result")


def reply() -> tuple[int, str]:
    from vllm.v1.executor.multiproc_executor import WorkerProc

    for error, wanted in ((AssertionError(), "AssertionError"), (ValueError(CAUSE), CAUSE)):
        replies: list = []
        queue = SimpleNamespace(enqueue=replies.append)
        WorkerProc.enqueue_output(SimpleNamespace(worker_response_mq=queue), error)
        [(status, text)] = replies
        if status != WorkerProc.ResponseStatus.FAILURE:
            raise RuntimeError(f"a worker answers {error!r} with {status}")
        if wanted not in text:
            return 1, f"a worker answers {error!r} with {text!r}"
    return 0, ""


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
