"""A device "hpu" that is the CPU, and the modules that the plugin imports to use it.

There is what the plugin asks for with one stage or several, and no more: another name is an
ImportError or an AttributeError. A tensor that is wanted on the device "hpu" is made on the
CPU, the kernels that the plugin has no code of its own for are the plain formulas, and the
cards in sight are those that HABANA_VISIBLE_MODULES names. There are no graphs, no streams and
no HCCL: vLLM itself takes gloo where it does not find that.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo
from torch.overrides import TorchFunctionMode
from torch.utils import _device

PACKAGE = "habana_frameworks"


class DeviceType(enum.Enum):
    """The devices that the plugin tells apart; none of them is here."""

    synDeviceGaudi2 = 2  # noqa: N815 - the maker's names
    synDeviceGaudi3 = 3  # noqa: N815


class RopeMode(enum.Enum):
    """How the two halves of a rotated vector lie: one behind the other, or in turns."""

    BLOCKWISE = 0
    PAIRWISE = 1


def rotate(
    vectors: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: None,
    offset: int,
    mode: RopeMode,
) -> torch.Tensor:
    """The rotary embedding of vectors whose cos and sin are already those of their positions."""
    if positions is not None or offset:
        raise NotImplementedError("positions are taken from cos and sin")
    if mode is RopeMode.BLOCKWISE:
        first, second = vectors.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
    else:
        turned = torch.stack((-vectors[..., 1::2], vectors[..., ::2]), dim=-1).flatten(-2)
    return vectors * cos.to(vectors.dtype) + turned * sin.to(vectors.dtype)


class RMSNorm:
    """The norm of the last dimension, by the formula of its paper, in float32."""

    @staticmethod
    def apply(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        wide = values.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return normed.to(values.dtype) * weight


def mixture_of_experts(
    hidden_states: torch.Tensor,
    expert_routing_table: torch.Tensor,
    router_weights: torch.Tensor,
    w12: list[torch.Tensor],
    w3: list[torch.Tensor],
    permuted_weights: bool,
    activation: str,
    experts_min: int,
    experts_max: int,
) -> torch.Tensor:
    """Each token through every expert of this rank, weighed by how it was routed."""
    if activation != "silu" or not permuted_weights:
        raise NotImplementedError(f"experts with {activation}, permuted: {permuted_weights}")
    total = torch.zeros_like(hidden_states)
    for expert, (up, down) in enumerate(zip(w12, w3, strict=True), experts_min):
        share = (router_weights * (expert_routing_table == expert)).sum(-1, keepdim=True)
        gate, value = (hidden_states @ up.t()).chunk(2, dim=-1)
        total += share.to(total.dtype) * ((torch.nn.functional.silu(gate) * value) @ down.t())
    return total


class Nothing:
    """A stream or an event of a device that does everything at once."""

    def __init__(self, *_args: object, **_kwargs: object) -> None: ...

    def done(self, *_args: object) -> None: ...

    record = wait = synchronize = wait_stream = wait_event = done


def nothing(*_args: object, **_kwargs: object) -> None:
    """What has no meaning on a CPU."""


def hosted(value: Any) -> Any:
    """A device as it is here: the CPU for "hpu"."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "hpu" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "hpu" else value


def from_the_end(index: torch.Tensor, size: int) -> torch.Tensor:
    """Indices of so many rows, of which those below zero count from the end."""
    return torch.where(index < 0, index + size, index)


class OnTheHost(TorchFunctionMode):
    """Calls torch for the CPU where a call names the device.

    The plugin pads indices with -1, which the device takes and the CPU refuses in some places.
    They are counted from the end here: in a cache that is the block that nobody reads.
    """

    BY_INDEX = (torch.index_select, torch.Tensor.index_select, torch.Tensor.index_copy_)

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = [hosted(value) for value in args]
        if func in self.BY_INDEX:
            values, dimension, index = given[:3]
            given[2] = from_the_end(index, values.shape[dimension])
        elif func is torch.nn.functional.embedding:
            given[0] = from_the_end(given[0], given[1].shape[0])
        return func(*given, **{key: hosted(value) for key, value in (kwargs or {}).items()})


@contextlib.contextmanager
def unchanged(*_args: object, **_kwargs: object) -> Iterator[Any]:
    """A context in which nothing is other than before."""
    yield types.SimpleNamespace(stats=lambda: [("", 0)])


def visible() -> int:
    """The cards in sight."""
    return len(os.environ.get("HABANA_VISIBLE_MODULES", "0").split(","))


def module(name: str, **members: Any) -> types.ModuleType:
    """A module of this package, which its parent has as an attribute."""
    made = types.ModuleType(f"{PACKAGE}.{name}")
    vars(made).update(members, __path__=[])
    sys.modules[made.__name__] = made
    parent, _, last = made.__name__.rpartition(".")
    setattr(sys.modules[parent], last, made)
    return made


def install() -> None:
    """Make the modules and the device, once in a process."""
    module("torch", torch=torch)
    module("torch.core", mark_step=nothing, hpu_initialize=nothing, hpu_inference_set_env=nothing)
    module("torch.internal")
    module("torch.internal.bridge_config", env_setting=unchanged)
    module("torch.utils")
    module("torch.utils.internal", is_lazy=lambda: False)
    module("torch.utils.experimental", synDeviceType=DeviceType, _get_device_type=nothing)
    module("torch.hpex")
    module("torch.hpex.kernels", RotaryPosEmbeddingMode=RopeMode, apply_rotary_pos_emb=rotate)
    module("torch.hpex.normalization", FusedRMSNorm=RMSNorm)
    torch.hpu = module(
        "torch.hpu",
        Event=Nothing,
        Stream=Nothing,
        current_device=lambda: 0,
        current_stream=Nothing,
        device_count=visible,
        is_available=lambda: True,
        mem_get_info=lambda *_: (8 << 30, 8 << 30),
        set_device=nothing,
        stream=unchanged,
        synchronize=nothing,
        wrap_in_hpu_graph=lambda wrapped, **_: wrapped,
    )
    module("torch.hpu.metrics", metric_localcontext=unchanged)
    module("torch.hpu.random", manual_seed_all=nothing)

    library = torch.library.Library("hpu", "DEF")
    library.define(
        "mixture_of_experts(Tensor hidden_states, Tensor expert_routing_table, "
        "Tensor router_weights, Tensor[] w12, Tensor[] w3, bool permuted_weights, "
        "str activation, int experts_min, int experts_max) -> Tensor"
    )
    library.impl("mixture_of_experts", mixture_of_experts, "CompositeExplicitAutograd")
    module("torch.kernels", library=library)  # they go when it does
    torch._dynamo.register_backend(lambda graph, _inputs: graph.forward, "hpu_backend")

    # `with torch.device("hpu")` is answered below every other mode.
    class HostContext(_device.DeviceContext):
        def __init__(self, device: Any) -> None:
            super().__init__(hosted(device))

    _device.DeviceContext = HostContext
    OnTheHost().__enter__()
