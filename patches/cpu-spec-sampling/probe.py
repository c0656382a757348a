"""Expand sampling parameters of requests to their draft tokens, as the CPU worker does."""

import sys
from unittest.mock import patch

PLACEHOLDER = -7
ENDS = [2, 3]  # two draft tokens of the first request, one of the second
CASES = (  # values of two requests, replace this, by this, and what the draft tokens get
    ("temperature", [0.5, 0.0], 0, 1, [0.5, 0.5, 1.0]),
    ("top_p", [0.75, 1.0], 0, 0, [0.75, 0.75, 1.0]),
    ("top_k", [40, 3], 0, 0, [40, 40, 3]),
)


def probe() -> tuple[int, str]:
    import torch
    from vllm.utils import cpu_triton_utils

    def kernel(*_args):
        """Stands in for the C++ kernel, in whose place only its arguments matter."""

    ends = torch.tensor(ENDS, dtype=torch.int32)
    for name, values, replace_from, replace_to, wanted in CASES:
        given = torch.tensor(values, dtype=torch.int32 if name == "top_k" else torch.float32)
        output = torch.full((len(wanted),), PLACEHOLDER, dtype=given.dtype)
        arguments = (output, given, ends, replace_from, replace_to)
        if hasattr(torch.ops._C, "expand_kernel_impl"):
            cpu_triton_utils._expand_kernel_impl(*arguments, MAX_NUM_TOKENS=128)
        else:
            with patch.object(torch.ops._C, "expand_kernel_impl", kernel, create=True):
                cpu_triton_utils._expand_kernel_impl(*arguments, MAX_NUM_TOKENS=128)
        if output.tolist() != wanted:
            return 1, f"draft tokens get the {name} {output.tolist()}, not {wanted}"
    return 0, "draft tokens get the sampling parameters of their requests"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
