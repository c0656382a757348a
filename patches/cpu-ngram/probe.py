"""Verify draft tokens with the real rejection sampler, as the CPU worker sets it up.

Once greedily, and once by sampling from distributions that leave no choice; and spread a value of
each request over its draft tokens. Where the C++ kernels
are not there (another platform's build), Python functions do their work; what is asked is whether
the sampler reaches them, with the right arguments.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import patch

VOCAB = 8
DRAFTS = [[1, 2, 3], [4, 5]]  # of two requests
TARGETS = [1, 2, 7, 4, 5]  # the model's tokens: the third draft of the first is wrong
BONUS = [6, 0]
ACCEPTED = [[1, 2, 7, -1], [4, 5, 0, -1]]
TOP_K = [40, 3]


def probe() -> tuple[int, str]:
    import torch
    from vllm import triton_utils

    with contextlib.ExitStack() as stack:
        for kernel in (
            rejection_greedy_sample,
            rejection_random_sample,
            sample_recovered_tokens,
            expand,
        ):
            name = f"{kernel.__name__}_kernel_impl"
            if not hasattr(torch.ops._C, name):
                stack.enter_context(patch.object(torch.ops._C, name, kernel, create=True))
        # The CPU worker's fallbacks are what is tried, whether there is Triton or not.
        stack.enter_context(patch.object(triton_utils, "HAS_TRITON", False))
        use_fallbacks()
        spread_top_k = [top_k for top_k, drafts in zip(TOP_K, DRAFTS, strict=True) for _ in drafts]
        for what, act, wanted in (
            ("greedily", lambda: verify(greedy=True), ACCEPTED),
            ("by sampling", lambda: verify(greedy=False), ACCEPTED),
            ("with top_k", spread, spread_top_k),
        ):
            try:
                got = act()
            except TypeError as error:
                return 1, f"the CPU worker cannot verify draft tokens {what}: TypeError: {error}"
            if got != wanted:
                raise RuntimeError(f"draft tokens verified {what}: {got}, not {wanted}")
    return 0, "the CPU worker verifies draft tokens with its own kernels"


def use_fallbacks():
    """What the CPU worker does without Triton: up to 0.30 its runner, then the platform."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if hasattr(CPUModelRunner, "_postprocess_triton"):
        CPUModelRunner._postprocess_triton(SimpleNamespace())
    else:
        from vllm.platforms.cpu import CpuPlatform

        CpuPlatform.register_triton_kernel_overrides()


def ends_of_drafts():
    import torch

    counts = torch.tensor([len(drafts) for drafts in DRAFTS], dtype=torch.int32)
    return counts.cumsum(0, dtype=torch.int32)


def verify(greedy):
    import torch
    from vllm.v1.sample.rejection_sampler import rejection_sample

    counts = [len(drafts) for drafts in DRAFTS]
    logits = torch.full((sum(counts), VOCAB), -1e9)
    logits[torch.arange(sum(counts)), TARGETS] = 0.0
    metadata = SimpleNamespace(
        all_greedy=greedy, all_random=not greedy, temperature=torch.ones(len(counts)), generators={}
    )
    return rejection_sample(
        torch.tensor([draft for drafts in DRAFTS for draft in drafts], dtype=torch.int32),
        counts,
        max(counts),
        ends_of_drafts(),
        None,
        logits,
        torch.tensor(BONUS).unsqueeze(1),
        metadata,
    ).tolist()


def spread():
    """What temperature, top_k and top_p go through; as int64, which all releases can do."""
    import torch
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    return expand_batch_to_tokens(torch.tensor(TOP_K), ends_of_drafts(), len(TARGETS)).tolist()


def spans(ends):
    return enumerate(zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True))


def accept(output, row, tokens, bonus):
    """Write tokens up to the first wrong one; ``tokens`` are (token, is the draft)."""
    for position, (token, right) in enumerate(tokens):
        output[row, position] = token
        if not right:
            return
    output[row, len(tokens)] = bonus


def rejection_greedy_sample(output, ends, drafts, targets, bonus, _is_greedy, _longest):
    for row, (start, end) in spans(ends):
        pairs = zip(targets[start:end].tolist(), drafts[start:end].tolist(), strict=True)
        accept(output, row, [(token, token == draft) for token, draft in pairs], bonus[row].item())


def rejection_random_sample(
    output, ends, drafts, _draft_probs, target_probs, bonus, recovered, uniform, *_others
):
    for row, (start, end) in spans(ends):
        tokens = []
        for at in range(start, end):
            right = bool(target_probs[at, drafts[at]] >= uniform[at])
            tokens.append(((drafts if right else recovered)[at].item(), right))
        accept(output, row, tokens, bonus[row].item())


def sample_recovered_tokens(output, ends, drafts, _draft_probs, target_probs, noise, *_others):
    for row, (start, end) in spans(ends):
        for at in range(start, end):
            scores = target_probs[at] * noise[row]
            scores[drafts[at]] = 0
            output[at] = scores.argmax()


def expand(output, values, ends, _replace_from, _replace_to):
    for row, (start, end) in spans(ends):
        output[start:end] = values[row]


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
