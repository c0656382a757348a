"""The engine's options and variables that have to be the same on every node.

vLLM does not compare them: nodes of two context lengths, data types or block sizes form a
replica that fails late, or one that is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

#: Options of the HTTP server, which only the head has: `FrontendArgs` of vLLM 0.26 to 0.33.
_SERVER = """
    allow-credentials allowed-headers allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-key api-server-count chat-template
    chat-template-content-format cohere-format cohere-is-reasoning-model
    data-parallel-supervisor-port default-chat-template-kwargs disable-access-log-for-endpoints
    disable-fastapi-docs disable-uvicorn-access-log dp-supervisor-probe-failure-threshold
    dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s enable-auto-tool-choice
    enable-flash-late-interaction enable-force-include-usage enable-log-deltas
    enable-log-outputs enable-offline-docs enable-per-request-metrics
    enable-prompt-tokens-details enable-request-id-headers enable-scale-out
    enable-server-load-tracking enable-ssl-refresh enable-tokenizer-info-endpoint
    exclude-tools-when-tool-choice-none fingerprint-mode fingerprint-value grpc grpc-port
    h11-max-header-count h11-max-incomplete-event-size host log-config-file log-error-stack
    lora-modules max-log-len middleware port reasoning-effort-map response-role
    return-tokens-as-token-ids root-path served-model-name sse-keep-alive-interval ssl-ca-certs
    ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile tokens-only tool-call-parser
    tool-parser-plugin tool-server tool-strict-level trust-request-chat-template
    trust-request-mm-kwargs uds uvicorn-log-level
"""
#: What a node may have its own of: where and how fast it reads weights, what it logs, and how
#: much of a card it takes (the smallest KV cache counts for all stages).
_LOCAL = """
    disable-log-stats download-dir enable-log-requests gpu-memory-utilization hf-token
    kv-cache-memory-bytes max-parallel-loading-workers safetensors-load-strategy use-tqdm-on-load
"""
#: Options in which nodes may differ.
OWN = frozenset((_SERVER + _LOCAL).split())
#: Short options of vLLM.
SHORT = {
    "-O": "--optimization-level",
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-pcp": "--prefill-context-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
}
#: Variables that change what a stage computes, or what it says to another one.
VARIABLES = (
    "VLLM_CONTIGUOUS_PA",
    "VLLM_KV_CACHE_LAYOUT",
    "VLLM_MLA_DISABLE",
    "VLLM_PP_LAYER_PARTITION",
    "VLLM_USE_V2_MODEL_RUNNER",
)


def compared(arguments: Sequence[str], pipeline: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What is compared of the words behind ``--`` and of the environment, by its name.

    Spellings that mean the same are the same; where an option is given twice the last counts.
    """
    given = _options(arguments)
    if pipeline > 1:  # the launcher gives it where nobody else does
        given.setdefault("--async-scheduling", "no")
    found = {
        f"option {name}": value
        for name, value in given.items()
        if name[2:].partition(".")[0] not in OWN
    }
    found |= {f"variable {name}": environ[name] for name in VARIABLES if environ.get(name)}
    return found


def _options(arguments: Sequence[str]) -> dict[str, str]:
    given: dict[str, list[str]] = {}
    values: list[str] = []
    for word in arguments:
        if not re.match(r"-[^\d.]", word):
            values.append(word)
            continue
        name, equals, value = word.partition("=")
        if name.startswith("-O") and name != "-O":  # -O3
            name, equals, value = "-O", "=", name[2:]
        values = [value] if equals else []
        given[_name(name)] = values
    return dict(_meaning(name, values) for name, values in given.items())


def _name(word: str) -> str:
    """An option's one name: with dashes, but for the keys of a JSON value behind a dot."""
    option, dot, key = SHORT.get(word, word).partition(".")
    return option.replace("_", "-") + dot + key


def _meaning(name: str, values: Sequence[str]) -> tuple[str, str]:
    """An option's name and value as they are compared and shown."""
    if not values:
        off = name.startswith("--no-")
        return (f"--{name[5:]}", "no") if off else (name, "yes")
    if name == "--config":
        return name, _content(values[0])
    return name, _bounded(" ".join(map(_canonical, values)))


def _canonical(value: str) -> str:
    """A JSON object or list, whatever its spaces and the order of its keys."""
    if value[:1] not in ("{", "["):
        return value
    try:
        return json.dumps(json.loads(value), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return value


def _content(path: str) -> str:
    """What a file of options says; it may lie elsewhere on each node."""
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read(1 << 20)).hexdigest()
    except OSError:
        return path


def _bounded(text: str) -> str:
    return text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()
