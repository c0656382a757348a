"""Step an engine with a batch queue and see when each batch's draft tokens are handed over."""

import sys
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

# The requests of one batch after the other; None is an empty batch.
BATCHES = ("a", "b", "a", None, "b", "a", "b", None, None, "a")


def probe() -> tuple[int, str]:
    for check in (order_by_queue, order_by_call, other_engines, later_batches):
        if reason := check():
            return 1, reason
    return 0, "draft tokens reach the scheduler right behind the token that they continue"


class Plan:
    """A scheduler that gives out the planned batches and notes what it is told."""

    def __init__(self):
        self.events, self.left = [], deque(enumerate(BATCHES))

    def has_requests(self):
        return bool(self.left)

    def schedule(self, *args):
        number, name = self.left.popleft()
        return SimpleNamespace(
            number=number,
            total_num_scheduled_tokens=0 if name is None else 1,
            pending_structured_output_tokens=False,
        )

    def get_grammar_bitmask(self, scheduler_output):
        return None

    def update_from_output(self, scheduler_output, model_output):
        self.events.append(("output", scheduler_output.number))
        return {}

    def update_draft_token_ids(self, draft_token_ids):
        self.events.append(("drafts", draft_token_ids))

    def finding(self):
        expected = []
        for number, name in enumerate(BATCHES):
            expected += [("output", number)] + [("drafts", number)] * (name is not None)
        for index, (seen, wanted) in enumerate(zip(self.events, expected, strict=False)):
            if seen == wanted:
                continue
            what, number = seen
            if what == "output":
                return f"the draft tokens of batch {wanted[1]} are not handed over with its output"
            told = ("output", number) in self.events[:index]
            when = "twice, or late," if told else "before its output"
            return f"the draft tokens of batch {number} are handed over {when}"
        if len(self.events) < len(expected):
            what, number = expected[len(self.events)]
            if what == "drafts":
                return f"the draft tokens of batch {number} are not handed over"
            raise RuntimeError(f"batch {number} never ended")
        return ""


class Worker:
    """The last stage: it runs a call when it comes in, and its draft tokens are the newest ones."""

    def __init__(self):
        self.calls, self.replies, self.number = [], deque(), None

    def enqueue(self, call):
        method, args = call[0], call[1]
        self.calls.append(method)
        self.replies.append(getattr(self, method)(*args))

    def dequeue(self, timeout=None, **options):
        from vllm.v1.executor.multiproc_executor import WorkerProc

        return WorkerProc.ResponseStatus.SUCCESS, self.replies.popleft()

    def execute_model(self, scheduler_output):
        if scheduler_output.total_num_scheduled_tokens:
            self.scheduled = scheduler_output.number
            return None
        return SimpleNamespace()

    def sample_tokens(self, grammar_output):
        self.number = self.scheduled
        return SimpleNamespace()

    def take_draft_token_ids(self):
        return self.number


def multiprocess(worker):
    """vLLM's own executor, between the engine and the worker's two queues."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    class Executor(MultiprocExecutor):
        def __init__(self):
            self.is_failed, self.output_rank = False, 1
            self.kv_output_aggregator = self.ec_output_aggregator = None
            self.rpc_broadcast_mq, self.response_mqs = worker, [None, worker]
            self.futures_queue = deque()
            self.shutdown_event = SimpleNamespace(is_set=lambda: False)

    return Executor()


class Caller:
    """An executor that answers at once and knows no output rank."""

    def __init__(self, worker):
        self.worker, self.take_draft_token_ids = worker, worker.take_draft_token_ids

    def execute_model(self, scheduler_output, non_block=False):
        return done(self.worker.execute_model(scheduler_output))

    def sample_tokens(self, grammar_output, non_block=False):
        return done(self.worker.sample_tokens(grammar_output))


def done(result):
    from concurrent.futures import Future

    future: Future = Future()
    future.set_result(result)
    return future


def engine(executor, stages, asynchronous=False):
    from vllm.v1.engine.core import EngineCore

    def nothing(*args):
        return None

    class Core(EngineCore):
        """Without what an engine does around the steps."""

        log_error_detail = capture_iteration_details = lambda self, *args: nullcontext()
        _process_aborts_queue = _should_throttle_prefills = nothing
        _attach_iteration_details = _attach_weight_version = nothing

        def __init__(self):
            self.model_executor, self.scheduler = executor, Plan()
            self.batch_queue_size = stages
            self.batch_queue = deque(maxlen=stages) if stages > 1 else None
            self.async_scheduling = asynchronous
            self.use_spec_decode = self.check_for_draft_tokens = self.is_ec_consumer = True
            self.is_pooling_model = self.is_mm_encoder_only = False

    return Core()


def run(core):
    # As in EngineCoreProc._process_engine_step().
    while core.scheduler.has_requests() or core.batch_queue:
        _, model_executed = core.step_with_batch_queue()
        core.post_step(model_executed)


def order_by_queue() -> str:
    for stages in (2, 3, 4):
        worker = Worker()
        core = engine(multiprocess(worker), stages)
        run(core)
        if reason := core.scheduler.finding():
            return f"{reason} ({stages} stages)"
        if worker.replies:
            raise RuntimeError("the engine left replies behind")
    return ""


def order_by_call() -> str:
    core = engine(Caller(Worker()), 2)
    run(core)
    return core.scheduler.finding()


def other_engines() -> str:
    """Async scheduling keeps draft tokens in the workers; one stage has no queue."""
    worker = Worker()
    core = engine(multiprocess(worker), 2, asynchronous=True)
    run(core)
    if "take_draft_token_ids" in worker.calls:
        return "the draft tokens of batch 0 are handed over with async scheduling too"
    worker = Worker()
    worker.number = 7
    core = engine(multiprocess(worker), 1)
    core.post_step(True)
    if core.scheduler.events != [("drafts", 7)]:
        return "the draft tokens of batch 7 are not handed over (1 stage)"
    return ""


def later_batches() -> str:
    """The real scheduler's side, for a request that has gone on, or lost its blocks, since."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.outputs import DraftTokenIds
    from vllm.v1.request import RequestStatus

    def state(status=RequestStatus.RUNNING, in_flight=0):
        return SimpleNamespace(
            status=status,
            num_in_flight_tokens=in_flight,
            is_finished=lambda: False,
            is_prefill_chunk=False,
            use_structured_output=False,
            spec_token_ids=[],
        )

    requests = {
        "current": state(),
        "preempted": state(status=RequestStatus.PREEMPTED),
        "in flight": state(in_flight=5),
    }
    manager = SimpleNamespace(
        should_advance=lambda request: False, validate_tokens=lambda request, tokens: tokens
    )
    scheduler = SimpleNamespace(requests=requests, structured_output_manager=manager)
    drafts = DraftTokenIds([*requests, "aborted"], [[1, 2, 3] for _ in range(4)])
    Scheduler.update_draft_token_ids(scheduler, drafts)
    if requests["current"].spec_token_ids != [1, 2, 3]:
        raise RuntimeError("the scheduler drops the draft tokens of every request")
    for name in ("preempted", "in flight"):
        if requests[name].spec_token_ids:
            return f"the draft tokens of a request that is {name} again are handed over"
    return ""


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
