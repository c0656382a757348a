"""Facts: what must be the same on every node, and how a difference is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fixes.errors import ExitCode, Problem
from fixes.launch import options
from fixes.launch.model import Identity
from fixes.launch.plan import Settings

Facts = Mapping[str, str]

#: What to do about a difference, by the fact that differs.
_HINTS = {
    **dict.fromkeys(("vLLM", "Python", "torch", "ray", "ai-dynamo"), "use one image on all nodes"),
    "fixes": "apply the same fixes on all nodes: the same --fix and --profile, the same image",
    "model": "serve the same model on all nodes",
    "model config": "serve the same model on all nodes",
    "head address": "--head-ip is to be the address that the head itself has",
    "model weights": "the files of weights have other names or sizes: serve the same model",
}
#: Known on one node only, these say nothing: a repository may be in one node's cache.
_MAY_LACK = ("model config", "model weights")


def gather(
    versions: Facts, digest: str, identity: Identity, made: Settings, environ: Mapping[str, str]
) -> dict[str, str]:
    """The facts of a node. ``versions``: vLLM's, Python's, torch's, and Ray's or Dynamo's.

    Under Ray only the head has a command line of vLLM; Ray hands its options on.
    """
    behind = options.compared(made.arguments, made.pipeline, environ)
    return {
        **versions,
        "fixes": digest,
        "model": identity.name,
        "model config": identity.config,
        "model weights": identity.weights,
        "engine": made.engine,
        "nodes": str(made.nnodes),
        "tensor parallel": str(made.tensor),
        "pipeline parallel": str(made.pipeline),
        "master port": str(made.master_port),
        **(behind if made.engine != "ray" else {}),
    }


def differences(known: Sequence[tuple[str, Facts]]) -> list[Problem]:
    """Every fact in which a node differs from the first, which is the head, with both sides.

    ``known`` has each node's name and facts, in the order of ranks.
    """
    (head, wanted), *others = known
    found = []
    for name, facts in others:
        for fact in {**wanted, **facts}:
            one, other = wanted.get(fact, ""), facts.get(fact, "")
            if one == other or (fact in _MAY_LACK and not (one and other)):
                continue
            what = f"{fact}: {head} has {_shown(one)}, {name} has {_shown(other)}"
            hint = _HINTS.get(fact, "give all nodes the same options and variables")
            found.append(Problem(ExitCode.NOT_STARTED, "nodes-differ", what, hint=hint))
    return found


def same_address(known: Sequence[tuple[str, str]]) -> list[Problem]:
    """Two nodes that call themselves by one address; ``known`` has names and addresses."""
    taken: dict[str, str] = {}
    found = []
    for name, ip in known:
        if ip in taken:
            what = f"{taken[ip]} and {name} have the same address"
            hint = "VLLM_HOST_IP is each node's own: on Kubernetes the pod's IP"
            found.append(Problem(ExitCode.NOT_STARTED, "same-address", what, hint=hint))
        taken.setdefault(ip, name)
    return found


def _shown(value: str) -> str:
    """A value, or the beginning of a hash."""
    if len(value) == 64:
        return f"sha256:{value[:12]}"
    return value[:200] or "nothing"
