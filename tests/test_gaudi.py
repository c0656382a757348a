"""The Gaudi fix on sources of its own making: where its edits land, and what they leave alone."""

from __future__ import annotations

import ast
import contextlib
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixes import catalogue, editing
from fixes.authoring import pins, toml
from fixes.digest import sha256
from fixes.editfile import parse_edits
from fixes.edits import Edit, EditError

FIX = "gaudi-pp-transport"
FOLDER = Path(catalogue.__file__).parents[1] / "patches" / FIX
RUNNER = "vllm_gaudi/v1/worker/hpu_model_runner.py"
WORKER = "vllm_gaudi/v1/worker/hpu_worker.py"
PLATFORM = "vllm_gaudi/platform.py"
TRANSPORT = "vllm_gaudi/pp_transport.py"

#: A plugin of the same structure: a step of one forward, and what the edits hold on to.
TREE = {
    RUNNER: '''\
"""A runner."""
import torch
from vllm.distributed.parallel_state import get_pp_group, get_dp_group


class HpuKVConnectorModelRunnerMixin:
    @staticmethod
    def maybe_wait_for_kv_save():
        pass

    @staticmethod
    def get_finished_kv_transfers(scheduler_output):
        return None, None


class HpuModelAdapter:
    def forward(self, *args, **kwargs):
        return kwargs


class HPUModelRunner(HpuKVConnectorModelRunnerMixin):
    def get_model(self):
        return self.model

    def _get_model_mm_inputs(self, token_ids):
        if self.supports_mm_inputs:
            return self.embed(token_ids)
        return None

    def _execute_model_generic(self, token_ids, attn_metadata, warmup_mode=False):
        additional_kwargs = {}
        trimmed_attn_metadata = trim_attn_metadata(attn_metadata)
        with self.record():
            hidden_states = self.model.forward(
                input_ids=token_ids, attn_metadata=trimmed_attn_metadata, **additional_kwargs
            )
        non_flattened = hidden_states
        hidden_states = hidden_states.view(-1, hidden_states.shape[-1])
        return non_flattened, None, hidden_states, self.model.compute_logits(hidden_states)

    def _run_sampling(self, batch_changed, logits_device, request_ids, pad_to, logits_requests):
        sampling_metadata = self._prepare_sampling(
            batch_changed, request_ids, pad_to, logits_requests
        )
        return self.sampler(logits_device, sampling_metadata), sampling_metadata

    def sample_tokens(self, grammar_output):
        scheduler_output, warmup_mode = self.scheduler_output, self.warmup_mode
        self.use_structured_output = False
        if grammar_output is not None:
            self.use_structured_output = True
        kept = {}
        embeds = self._get_model_mm_inputs(self.token_ids)
        states, _, _, logits = self._execute_model_generic(self.token_ids, None, warmup_mode)
        for i, rid in enumerate(self.input_batch.req_ids):
            if rid in self.input_batch.num_prompt_logprobs:
                kept[rid] = states[i]
        sampled, _ = self._run_sampling(False, logits, None, None, None)
        req_ids_output_copy = self.input_batch.req_ids.copy()
        return req_ids_output_copy, sampled, kept, self.use_structured_output, embeds

    def warmup_sampler(self):
        test_batch_sizes = list(
            dict.fromkeys(
                [1]
                + [bucket[0] for bucket in self.bucketing_manager.decode_buckets if bucket[0] > 0]
            )
        )
        return [self.model.compute_logits(size) for size in test_batch_sizes]


def trim_attn_metadata(metadata):
    return metadata
''',
    WORKER: '''\
"""A worker."""
import torch
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment


def init_worker_distributed_environment(vllm_config, rank):
    parallel_config = vllm_config.parallel_config
    init_distributed_environment(parallel_config.world_size, rank, backend="hccl")
    dummy_tensor_hpu = torch.ones(1).to("hpu")
    torch.distributed.all_reduce(dummy_tensor_hpu)
    ensure_model_parallel_initialized(
        parallel_config.tensor_parallel_size, parallel_config.pipeline_parallel_size
    )
''',
    PLATFORM: '''\
"""A platform."""


class HpuPlatform:
    @classmethod
    def check_and_update_config(cls, vllm_config):
        parallel_config = vllm_config.parallel_config
        parallel_config.worker_cls = "worker"
        vllm_config.scheduler_config.async_scheduling = (
            vllm_config.scheduler_config.async_scheduling
            and vllm_config.speculative_config is None
        )
''',
}


def edits() -> tuple[Edit, ...]:
    table = toml.parse((FOLDER / "edit.toml").read_bytes(), FIX, "bad-edit")
    return parse_edits(table, lambda name: (FOLDER / name).read_bytes())


def fixed(tree: dict[str, str]) -> dict[str, str]:
    def read(path: str) -> bytes | None:
        return tree[path].encode() if path in tree else None

    return {path: one.data.decode() for path, one in editing.resolve_all(read, edits()).items()}


ANCHORED = [edit for edit in edits() if edit.anchor]


def functions(source: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(source)
    found = {}
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for scope in scopes:
        prefix = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
        for node in scope.body:
            if isinstance(node, ast.FunctionDef):
                found[prefix + node.name] = node
    return found


class Swap(ast.NodeTransformer):
    """Replace every statement, or expression, of the same syntax."""

    def __init__(self, anchor: str, by: list[ast.stmt] | ast.expr) -> None:
        (self.node,) = ast.parse(anchor).body
        if isinstance(by, ast.expr):
            self.node = self.node.value  # type: ignore[attr-defined]
        self.by = by
        self.found = 0

    def visit(self, node: ast.AST) -> Any:
        if ast.dump(node) == ast.dump(self.node):
            self.found += 1
            return self.by
        return self.generic_visit(node)


def swapped(edit: Edit, by: Callable[[ast.AST], Any]) -> dict[str, str]:
    """The tree with another thing in place of an edit's anchor."""
    tree = ast.parse(TREE[edit.file])
    swap = Swap(edit.anchor, ast.parse("None").body[0].value)  # type: ignore[attr-defined]
    if edit.op != "replace-expression":
        swap = Swap(edit.anchor, [])
    swap.by = by(swap.node)
    source = ast.unparse(ast.fix_missing_locations(swap.visit(tree)))
    assert swap.found == 1
    return {**TREE, edit.file: source}


def test_the_edits_fit_and_touch_nothing_else() -> None:
    made = fixed(TREE)
    assert made.keys() == {*TREE, TRANSPORT}
    assert made[TRANSPORT] == (FOLDER / "pp_transport.py").read_text("utf-8")
    scopes = {(edit.file, edit.scope) for edit in edits() if edit.scope}
    for path, source in TREE.items():
        before, after = functions(source), functions(made[path])
        changed = {name for name in after if ast.dump(after[name]) != ast.dump(before[name])}
        assert changed == {scope for file, scope in scopes if file == path}


@pytest.mark.parametrize("edit", ANCHORED, ids=lambda edit: f"{edit.scope}-{edit.op}")
@pytest.mark.parametrize("how", ["gone", "doubled", "moved"])
def test_an_anchor_that_is_not_where_it_was_is_refused(edit: Edit, how: str) -> None:
    expression = edit.op == "replace-expression"
    other = ast.parse("other").body[0]
    pair = ast.parse(f"({edit.anchor}) and ({edit.anchor})") if expression else None
    tree = swapped(
        edit,
        lambda node: {
            "gone": other.value if expression else other,  # type: ignore[attr-defined]
            "moved": other.value if expression else other,  # type: ignore[attr-defined]
            "doubled": pair.body[0].value if pair else [node, node],  # type: ignore[attr-defined]
        }[how],
    )
    if how == "moved":
        body = "\n    ".join(edit.anchor.strip().splitlines())
        tree[edit.file] += f"\n\ndef elsewhere(self):\n    {body}\n"
    with pytest.raises(EditError) as caught:
        fixed(tree)
    assert caught.value.kind == ("ambiguous" if how == "doubled" else "drifted")


@pytest.mark.parametrize("name", sorted({edit.scope for edit in edits() if edit.scope}))
def test_a_function_that_is_gone_is_refused(name: str) -> None:
    leaf = name.rpartition(".")[2]
    tree = {path: source.replace(f"def {leaf}(", "def renamed(") for path, source in TREE.items()}
    assert tree != TREE
    with pytest.raises(EditError):
        fixed(tree)


def test_the_pins_are_of_these_edits() -> None:
    root = catalogue.find()
    found = pins.load(root.read(pins.name("vllm_gaudi")), "pins")
    assert {"v0.24.0", "v0.26.0", "v0.27.0rc0"} <= found.sources.keys()
    source = f"patches/{FIX}/edit.toml"
    assert found.steps[source] == sha256(root.read(source))
    assert found.files.keys() == {RUNNER, WORKER, PLATFORM}
    pinned = {(path, scope.name) for path, all_ in found.scopes[FIX].items() for scope in all_}
    for edit in edits():
        for name in (edit.scope, *edit.relies):
            assert not name or (edit.file, name) in pinned


class Group(SimpleNamespace):
    """The stage of a rank."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(
            world_size=size, is_first_rank=rank == 0, is_last_rank=rank == size - 1, calls=[]
        )


class Rows(SimpleNamespace):
    shape = (1, 4)

    def view(self, *shape: int) -> Rows:
        return self

    def __getitem__(self, index: int) -> Rows:
        return self


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Load a source as a module beside stubs of what it imports."""

    def load(name: str, source: str, **stubs: dict[str, Any]) -> ModuleType:
        for stub, content in stubs.items():
            module = types.ModuleType(stub.replace("__", "."))
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            owner, _, leaf = module.__name__.rpartition(".")
            if owner:
                parent = sys.modules.get(owner) or types.ModuleType(owner)
                monkeypatch.setitem(sys.modules, owner, parent)
                monkeypatch.setattr(parent, leaf, module, raising=False)
        made = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        exec(compile(source, name, "exec"), vars(made))
        return made

    yield load


def runner(modules: Callable[..., ModuleType], source: str, group: Group, **transport: Any) -> Any:
    """A runner of the plugin with this transport and stage; it has a step to do."""

    class Model:
        def forward(self, **kwargs: Any) -> Rows:
            group.calls.append(kwargs.get("intermediate_tensors", "without"))
            return Rows()

        def compute_logits(self, hidden: Any) -> str:
            group.calls.append("logits")
            return "logits"

    module = modules(
        "hpu_model_runner",
        source,
        torch={"empty": lambda size: "nothing"},
        vllm__distributed__parallel_state={
            "get_pp_group": lambda: group,
            "get_dp_group": None,
        },
        vllm__v1__outputs={"SamplerOutput": lambda **fields: fields},
        vllm_gaudi__pp_transport=transport,
    )
    made = module.HPUModelRunner()
    made.scheduler_output, made.warmup_mode, made.supports_mm_inputs = "scheduled", False, True
    made.vllm_config, made.token_ids, made.model = "config", "tokens", Model()
    made.input_batch = SimpleNamespace(req_ids=["a"], num_prompt_logprobs={"a": 1})
    made.bucketing_manager = SimpleNamespace(decode_buckets=[(2,)])
    made.embed = lambda tokens: f"embedded {tokens}"
    made.record = contextlib.nullcontext
    made._prepare_sampling = lambda *args: "metadata"
    made.sampler = lambda logits, metadata: f"sampled from {logits}"
    return made


def test_one_stage_never_sees_the_transport(modules: Callable[..., ModuleType]) -> None:
    outcomes = []
    for source in (TREE[RUNNER], fixed(TREE)[RUNNER]):
        group = Group(0, 1)
        # Without a single function in the transport, each use of it would raise.
        made = runner(modules, source, group)
        result = made.sample_tokens("grammar"), made.warmup_sampler(), group.calls
        outcomes.append(str(result))
    assert outcomes[0] == outcomes[1]
    assert "sampled from logits" in outcomes[0] and "embedded tokens" in outcomes[0]


def test_the_first_of_two_stages_sends_and_does_not_sample(
    modules: Callable[..., ModuleType],
) -> None:
    group, sent = Group(0, 2), []
    made = runner(
        modules,
        fixed(TREE)[RUNNER],
        group,
        receive=lambda runner, tokens, warmup: None,
        send=lambda tensors, config: sent.append(config),
        finish=lambda runner, output, warmup: ("finished", output, warmup),
    )
    assert made.sample_tokens("grammar") == ("finished", "scheduled", False)
    assert sent == ["config"] and group.calls == [None] and not made.use_structured_output
    assert made.warmup_sampler() is None
    made.warmup_mode = True
    made.sample_tokens(None)
    assert len(sent) == 1


def test_the_last_of_two_stages_receives_and_samples(modules: Callable[..., ModuleType]) -> None:
    group = Group(1, 2)
    made = runner(
        modules,
        fixed(TREE)[RUNNER],
        group,
        receive=lambda runner, tokens, warmup: f"received for {tokens}, {warmup}",
    )
    _, sampled, kept, structured, embeds = made.sample_tokens("grammar")
    assert group.calls == ["received for tokens, False", "logits"]
    assert (sampled, list(kept), structured) == ("sampled from logits", ["a"], True)
    assert embeds is None


@pytest.mark.parametrize("stages", [1, 2])
def test_only_one_stage_tries_all_devices_together(
    modules: Callable[..., ModuleType], stages: int
) -> None:
    calls: list[Any] = []
    ones = SimpleNamespace(to=lambda device: device)
    module = modules(
        "hpu_worker",
        fixed(TREE)[WORKER],
        torch={
            "ones": lambda size: ones,
            "distributed": SimpleNamespace(all_reduce=lambda one: calls.append(f"all of {one}")),
        },
        vllm__distributed={
            "init_distributed_environment": lambda *args, **kwargs: calls.append("init"),
            "ensure_model_parallel_initialized": lambda *sizes: calls.append(sizes),
        },
        vllm_gaudi__pp_transport={"check_groups": lambda: calls.append("checked")},
    )
    parallel = SimpleNamespace(
        world_size=2 * stages, tensor_parallel_size=2, pipeline_parallel_size=stages
    )
    module.init_worker_distributed_environment(SimpleNamespace(parallel_config=parallel), 0)
    assert calls == (["init", "all of hpu", (2, 1)] if stages == 1 else ["init", (2, 2), "checked"])


def configured(
    modules: Callable[..., ModuleType], stages: int, lazy: bool = False, **more: Any
) -> tuple[Any, list[str]]:
    """A configuration after the platform has seen it, and what it warned of."""
    warnings: list[str] = []
    logger = SimpleNamespace(warning=warnings.append)
    internal = SimpleNamespace(is_lazy=lambda: lazy)
    module = modules(
        "vllm_gaudi.pp_transport",
        fixed(TREE)[TRANSPORT],
        torch={},
        torch__distributed={},
        habana_frameworks__torch={"utils": SimpleNamespace(internal=internal)},
        vllm__distributed__kv_transfer=dict.fromkeys(
            ("get_kv_transfer_group", "has_kv_transfer_group")
        ),
        vllm__distributed__parallel_state=dict.fromkeys(
            ("get_pp_group", "get_tp_group", "get_world_group")
        ),
        vllm__sequence={"IntermediateTensors": None},
        vllm__v1__outputs=dict.fromkeys(
            ("EMPTY_MODEL_RUNNER_OUTPUT", "KVConnectorOutput", "ModelRunnerOutput")
        ),
        vllm_gaudi__extension__logger={"logger": lambda: logger},
        vllm_gaudi__extension__runtime={"get_config": None},
    )
    assert module.configure
    platform = modules("platform_under_test", fixed(TREE)[PLATFORM])
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=stages,
            distributed_executor_backend=more.get("backend", "mp"),
        ),
        scheduler_config=SimpleNamespace(async_scheduling=more.get("asynchronous", True)),
        speculative_config=more.get("speculative"),
        model_config=SimpleNamespace(pooler_config=more.get("pooler")),
    )
    platform.HpuPlatform.check_and_update_config(config)
    return config, warnings


def test_asynchronous_scheduling_is_off_and_said_only_with_stages(
    modules: Callable[..., ModuleType],
) -> None:
    config, warnings = configured(modules, 1)
    assert config.scheduler_config.async_scheduling and not warnings
    config, warnings = configured(modules, 2)
    assert not config.scheduler_config.async_scheduling
    assert len(warnings) == 1 and "asynchronous scheduling is off" in warnings[0]
    config, warnings = configured(modules, 2, asynchronous=False)
    assert not config.scheduler_config.async_scheduling and not warnings


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"pooler": object()}, "pooling models"),
        ({"speculative": object()}, "speculative decoding"),
        ({"lazy": True}, "PT_HPU_LAZY_MODE=0"),
        ({"backend": "ray"}, "--distributed-executor-backend mp"),
    ],
)
def test_what_stages_cannot_do_is_refused_at_the_start(
    modules: Callable[..., ModuleType], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match="--pipeline-parallel-size 2") as caught:
        configured(modules, 2, **more)
    assert said in str(caught.value)
    configured(modules, 1, **more)


def test_the_pins_hold_no_code() -> None:
    data = json.loads(catalogue.find().read(pins.name("vllm_gaudi")))
    for by_path in data["scopes"].values():
        for scopes in by_path.values():
            for scope in scopes:
                assert scope.keys() == {"name", "part", "sha256"}
                assert len(scope["sha256"]) == 64
