"""``manifest``: render a Kubernetes manifest of a replica, so that nobody edits one by hand."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from fixes import report
from fixes.errors import ExitCode
from fixes.manifest.wanted import GANGS, KINDS, PLATFORMS, WAYS, Wanted

_DEFAULT = {field.name: field.default for field in fields(Wanted)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb. What stands behind ``--`` is vLLM's."""
    from fixes.cli import filled

    parser.usage = "vllm-fixes manifest --model MODEL [options] [-- options of vllm serve]"

    def text(option: str, about: str, metavar: str = "NAME") -> None:
        default = _default(option)
        many = default == ()
        parser.add_argument(
            option,
            type=filled,
            action="append" if many else "store",
            default=None if many else default or None,
            metavar=metavar,
            required=option == "--model",
            help=about.format(default),
        )

    def number(option: str, about: str, *short: str) -> None:
        default = _default(option)
        help_text = f"{about} ({default})"
        parser.add_argument(option, *short, type=int, default=default, metavar="N", help=help_text)

    def choice(option: str, names: tuple[str, ...], about: str) -> None:
        default = _default(option)
        help_text = f"{about} ({default})" if default else about
        parser.add_argument(option, choices=names, default=default or None, help=help_text)

    text("--model", "a path below /models, or a name on the hub", "MODEL")
    choice("--kind", KINDS, "the controller")
    choice("--platform", PLATFORMS, "the cards")
    text("--name", "of the objects ({})")
    text("--namespace", "of the objects; default: none is written")
    text("--image", "default: what docker/ builds, or what that is built from")
    text("--release", "vLLM's, and so the profile; v0.26.0 for Gaudi, v0.30.0 else", "vX.Y.Z")
    choice("--fixes", WAYS, "how they come in")
    text("--fix", "a fix or bundle; default: pipeline-parallel", "FIX")
    number("--tensor-parallel-size", "cards of a stage", "-tp")
    number("--pipeline-parallel-size", "stages", "-pp")
    number("--cards", "of a node")
    text("--resource", "what a card is called; habana.ai/gaudi or nvidia.com/gpu")
    text("--also", "another resource of a pod, such as rdma/ib=1", "NAME=COUNT")
    text("--cpu", "of a pod ({})", "N")
    text("--memory", "of a pod, with --shm in it; 409Gi for Gaudi, 512Gi else", "SIZE")
    text("--shm", "the size of /dev/shm ({})", "SIZE")
    text("--model-claim", "the PersistentVolumeClaim that has the model", "CLAIM")
    text("--cache-claim", "one for what is loaded from the hub", "CLAIM")
    text("--hf-secret", "the Secret whose key `token` is the hub's token")
    text("--token-secret", "the Secret whose key `token` the launchers share; NAME-token")
    text("--env", "a variable of every node, such as VLLM_PP_LAYER_PARTITION", "NAME=VALUE")
    text("--node-label", "of the nodes to take", "KEY=VALUE")
    text("--topology", "keep a group in one domain of this label (lws)", "LABEL")
    number("--replicas", "groups of nodes")
    number("--max-replicas", "scale up to as many; 0 does not scale")
    parser.add_argument(
        "--surge", action="store_true", help="update without a gap, on more nodes (lws)"
    )
    choice("--gang", GANGS, "schedule a group whole or not at all; needs --queue")
    text("--queue", "the scheduler's queue")
    number("--user", "run as this user, with a read-only root; 0 is the image's")
    number("--port", "of the API")
    number("--grace", "seconds to finish requests")
    number("--meet", "seconds that nodes wait for each other")
    number("--startup", "seconds to load the model")
    number("--fail-slow", "seconds before a failed start ends")


def run(options: argparse.Namespace) -> int:
    """Print the manifest. Raises FixesError (usage) with everything that does not go together."""
    from fixes.manifest import render

    words: dict[str, Any] = {"arguments": tuple(getattr(options, "behind", ()))}
    for name in _DEFAULT:
        value = getattr(options, name, None)
        if value is not None:
            words[name] = tuple(value) if isinstance(value, list) else value
    report.emit(render.text(Wanted(**words)))
    return ExitCode.OK


def _default(option: str) -> object:
    """The default of the parameter that an option sets."""
    return _DEFAULT[option.removeprefix("--").replace("-", "_")]
