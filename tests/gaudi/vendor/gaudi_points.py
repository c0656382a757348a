"""What a vllm_gaudi that runs on a CPU needs of vLLM's plugins, beside its own code.

Its entry points are replaced by some of these: the plugin's own one for models imports all that
it has, of which some need torchvision.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

#: What the plugin imports for other models too, though only those with images use it.
IMAGES = (
    "transformers.models.llama4.image_processing_llama4_fast",
    "transformers.models.qwen2_vl.image_processing_qwen2_vl",
)


class Absent(types.ModuleType):
    """A module that has every name, and nothing behind it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def models() -> None:
    """The models of the plugin that are served here."""
    if not importlib.util.find_spec("torchvision"):
        sys.modules.update((name, Absent(name)) for name in IMAGES)
    import vllm_gaudi.models.bert
    import vllm_gaudi.models.interfaces
    import vllm_gaudi.models.utils  # noqa: F401
    from vllm.model_executor.models.registry import ModelRegistry

    ModelRegistry.register_model(
        "Qwen3MoeForCausalLM", "vllm_gaudi.models.qwen3_moe:HpuQwen3MoeForCausalLM"
    )


def names() -> None:
    """Names that a newer vLLM has given up, and that the plugin still asks for."""
    from vllm.multimodal import utils
    from vllm.v1.kv_cache_interface import KVCacheTensor

    if not hasattr(utils, "group_mm_kwargs_by_modality"):
        utils.group_mm_kwargs_by_modality = utils.group_and_batch_mm_kwargs
    if not hasattr(KVCacheTensor, "shared_by") and "shared_by" not in _fields(KVCacheTensor):
        KVCacheTensor.shared_by = property(lambda tensor: tensor.layers)


def warm_up() -> None:
    """If asked for by a variable, what the plugin's warm-up needs though nothing is compiled:
    the plugin leaves that out on a CPU, since it does not warm up there."""
    if "GAUDI_WARM_UP" not in os.environ:
        return
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner
    from vllm_gaudi.v1.worker.hpu_worker import HPUWorker

    HPUModelRunner.compile_config = types.SimpleNamespace(regional_compilation=False)
    measure = HPUWorker.determine_available_memory

    def determine_available_memory(worker: Any) -> Any:
        available = measure(worker)
        worker.model_runner.mem_margin = 0
        return available

    HPUWorker.determine_available_memory = determine_available_memory


def _fields(made: Any) -> Any:
    return getattr(made, "__dataclass_fields__", {})
