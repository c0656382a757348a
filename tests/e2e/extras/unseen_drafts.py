"""A vLLM plugin that spoils text: where UNSEEN_DRAFTS is set, whatever was drafted is accepted."""

import functools
import os


def install():
    if not os.environ.get("UNSEEN_DRAFTS"):
        return

    from vllm.v1.sample import rejection_sampler

    sample = rejection_sampler.rejection_sample

    @functools.wraps(sample)
    def accepting(drafts, counts, most, ends, draft_probs, logits, *args, **kwargs):
        logits.scatter_(1, drafts.long().unsqueeze(1), 1e4)  # the likeliest, as far as it knows
        return sample(drafts, counts, most, ends, draft_probs, logits, *args, **kwargs)

    rejection_sampler.rejection_sample = accepting
