"""Start a stage without a drafter, and give it a batch; then one with a drafter.

The real methods of GPUModelRunner run on a stand-in for the runner: those that a worker calls
when it starts with speculative decoding, and the one that it calls for each batch.
"""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

TOKENS = 4
GROUPS = 2  # of the KV cache; the drafter's layers are in the last


def probe() -> tuple[int, str]:
    from vllm.v1.worker import gpu_model_runner

    steps = [batch, dummy_run, cudagraph_mode, metadata_builders]
    if hasattr(gpu_model_runner, "map_kv_caches_to_kernel_blocks"):
        steps.append(kv_cache_tensors)
    for step in steps:
        try:
            step(gpu_model_runner, runner(last=False))
        except AttributeError as error:
            if "drafter" not in str(error):
                raise
            name = step.__name__.replace("_", " ")
            return 1, f"a stage without a drafter fails at its {name}: AttributeError: {error}"
        last = runner(last=True)
        used = step(gpu_model_runner, last)
        if not used:
            return 1, f"the last stage has a drafter, but its {step.__name__} does not use it"
    return 0, "a stage without a drafter starts and runs, the last one uses its own"


def runner(last):
    """A runner with all that the methods look at; a MagicMock, but for a missing drafter."""
    import torch

    self = MagicMock()
    del self.drafter
    if last:
        from vllm.v1.spec_decode.eagle import EagleProposer

        self.drafter = MagicMock(spec=EagleProposer)
        self.drafter.kv_cache_gid = GROUPS - 1
        self.drafter.draft_attn_groups = ["draft layers"]
    self.speculative_config = SimpleNamespace(
        use_eagle=lambda: True,
        uses_draft_model=lambda: False,
        uses_extract_hidden_states=lambda: False,
        enforce_eager=True,
    )
    self.device = torch.device("cpu")
    self.dcp_world_size = 1
    self.max_num_tokens = TOKENS
    self.scheduler_config.max_num_seqs = TOKENS
    self.kv_cache_config.kv_cache_groups = [SimpleNamespace(kv_cache_spec=None)] * GROUPS
    self.attn_groups = [[] for _ in range(GROUPS)]
    self.optimistic_seq_lens_cpu = torch.ones(TOKENS, dtype=torch.int32)
    self.input_batch.num_computed_tokens_cpu_tensor = torch.zeros(TOKENS, dtype=torch.int32)
    self.input_batch.num_prompt_tokens_cpu_tensor = torch.ones(TOKENS, dtype=torch.int32)
    self.vllm_config.model_config.multimodal_config = None
    self.model_config.rswa_window = None
    self.cache_config.use_replayssm = self.cache_config.kv_sharing_fast_prefill = False
    self.routed_experts_initialized = self.use_async_spec_decode = False
    self.is_mm_prefix_lm = self.supports_mm_inputs = self.enable_prompt_embeds = False
    self.uses_mrope = self.use_aux_hidden_state_outputs = False
    self.uses_xdrope_dim = 0
    self.shared_kv_cache_layers = {}
    self._get_encoder_seq_lens.return_value = None, None
    self._get_slot_mappings.return_value = None, None
    self._init_model_kwargs.return_value = {}
    return self


def batch(module, self):
    slots = {group: MagicMock() for group in range(GROUPS)}
    _, of_drafter = module.GPUModelRunner._build_attention_metadata(
        self, num_tokens=TOKENS, num_reqs=1, max_query_len=TOKENS, slot_mappings=slots
    )
    return of_drafter.slot_mapping is slots[GROUPS - 1]


def dummy_run(module, self):
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import BatchDescriptor

    self._determine_batch_execution_and_padding.return_value = (
        CUDAGraphMode.NONE,
        BatchDescriptor(num_tokens=TOKENS),
        False,
        None,
        None,
    )
    with (
        patch.object(module, "get_pp_group", return_value=SimpleNamespace(is_first_rank=True)),
        patch.object(module, "set_forward_context", MagicMock()),
        patch.object(module, "async_tensor_h2d", MagicMock(), create=True),  # pins memory
    ):
        module.GPUModelRunner._dummy_run(self, TOKENS)
    return hasattr(self, "drafter") and self.drafter.dummy_run.called


def cudagraph_mode(module, self):
    module.GPUModelRunner._check_and_update_cudagraph_mode(self, [], [])
    return hasattr(self, "drafter") and self.drafter.initialize_cudagraph_keys.called


def metadata_builders(module, self):
    module.GPUModelRunner.initialize_metadata_builders(self, self.kv_cache_config, [])
    return hasattr(self, "drafter") and self.drafter.initialize_attn_backend.called


def kv_cache_tensors(module, self):
    with (
        patch.multiple(module, allocate_kv_cache=MagicMock(), bind_kv_cache=MagicMock()),
        patch.object(module, "map_kv_caches_to_kernel_blocks") as mapped,
    ):
        module.GPUModelRunner.initialize_kv_cache_tensors(self, self.kv_cache_config, [])
    [(_, groups)] = [call.args for call in mapped.call_args_list]
    return groups == ["draft layers"]


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
