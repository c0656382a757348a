"""What cannot be asked for: it would be refused, by a cluster when it is applied, or by the nodes
at each of their starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace

from fixes import catalogue
from fixes.errors import ExitCode, FixesError, Problem
from fixes.launch import plan
from fixes.launch.options import SHORT
from fixes.manifest import formats, pod
from fixes.manifest.wanted import GANGS, MODELS, Wanted
from fixes.manifest.yamltext import plain

#: What is written for each kind; the rest is refused rather than guessed.
GANGS_OF = {
    "lws": GANGS,
    "stormservice": ("volcano",),
    "ray": (),
    "dynamo": ("volcano", "kai"),
}
#: What a kind has no use for: said, and not passed over.
_FOR_LAUNCH = ("grace", "meet", "fail_slow", "token_secret", "fix", "user")
_NOT_FOR = {
    "lws": (),
    "stormservice": ("topology", "surge"),
    "ray": ("topology", "surge", "max_replicas", "port", *_FOR_LAUNCH),
    "dynamo": ("topology", "surge", "max_replicas", "port", "resource", "also", *_FOR_LAUNCH),
}
#: The longest name that each controller has room for, in front of what it adds for its pods:
#: LeaderWorkerSet -GROUP-WORKER, of which the group's digits are taken off below. AIBrix's webhook
#: allows 63 with 36 of its own and the role's name, `replica`. KubeRay: -xxxxx-serve-svc.
#: Dynamo's, and Grove's, allow 45 with the service's name and its clique's: vllmworker,
#: vllmworker-ldr.
LONGEST_NAME = {"lws": 51, "stormservice": 20, "ray": 47, "dynamo": 21}
#: The launchers' own, on the head.
_TAKEN = (plan.MASTER_PORT, plan.WATCH_PORT)
_LARGEST = {"port": 65535, "user": 2**31 - 1}
#: Behind ``--`` they would move the API away from where the Service and the policies expect it.
_ELSEWHERE = ("--port", "--uds")
#: Everybody who may read the manifest would know them.
_SECRETS = {
    "HF_TOKEN": "is a secret: --hf-secret",
    "VLLM_FIXES_TOKEN": "is a secret: --token-secret",
}
_Found = Iterator[tuple[str, str, str]]


def check(wanted: Wanted) -> None:
    """Raises FixesError (usage, unknown-profile) with everything that cannot be rendered."""
    checks = (_numbers, _sizes, _texts, _names, _variables, _together, _behind, _offered)
    problems = [
        Problem(ExitCode.USAGE, "usage", what, where, hint)
        for check in checks
        for what, where, hint in check(wanted)
    ]
    if problems:
        raise FixesError(*problems)


def _numbers(wanted: Wanted) -> _Found:
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "cards", "replicas", "startup")
    positive = (*sizes, "port")
    for name in (*positive, "max_replicas", "user", "grace", "meet", "fail_slow"):
        value = getattr(wanted, name)
        if value < (name in positive):
            yield "is too small", _option(name), ""
        elif value > _LARGEST.get(name, value):
            yield f"is more than {_LARGEST[name]}", _option(name), ""
    if wanted.port in _TAKEN:
        yield f"{wanted.port} is a port of the launchers themselves", "--port", ""


def _sizes(wanted: Wanted) -> _Found:
    cards = wanted.tensor_parallel_size * wanted.pipeline_parallel_size
    if wanted.cards < 1 or cards < 1:
        return
    if cards % wanted.cards:
        what = f"{cards} cards are no whole number of nodes with {wanted.cards}"
        yield what, "--cards", "nodes are asked for whole"
    elif wanted.nodes < 2:
        yield f"{cards} cards are one node: a Deployment is enough", "--cards", ""
    if wanted.max_replicas and wanted.max_replicas < wanted.replicas:
        yield f"is less than --replicas {wanted.replicas}", "--max-replicas", ""
    if not formats.CPU.fullmatch(wanted.cpu):
        yield f"{wanted.cpu} is no number of CPUs such as 64", "--cpu", ""
    memory = formats.bytes_of(wanted.memory_size)
    shm = formats.bytes_of(wanted.shm)
    for value, size, option in (
        (wanted.memory_size, memory, "--memory"),
        (wanted.shm, shm, "--shm"),
    ):
        if not size:
            yield f"{value} is no size such as 64Gi", option, ""
    if memory and shm >= memory > 0:
        what = f"{wanted.shm} of /dev/shm are all of the pod's memory, {wanted.memory_size}"
        yield what, "--shm", "it counts as memory of the pod"
    known = {wanted.card: "--cards", "cpu": "--cpu", "memory": "--memory"}
    for also in wanted.also:
        name, _, count = also.partition("=")
        if name in known:
            yield f"{name} is what {known[name]} says", "--also", ""
        elif not formats.resource(name, count):
            hint = "such as rdma/ib=1, or ephemeral-storage=100Gi"
            yield f"{also} is no RESOURCE=COUNT", "--also", hint
        known[name] = "another --also"


def _texts(wanted: Wanted) -> _Found:
    for field in fields(wanted):
        value = getattr(wanted, field.name)
        words = value if isinstance(value, tuple) else (value,)
        if not all(word.isprintable() for word in words if isinstance(word, str)):
            yield "has a letter that cannot be printed", _option(field.name), ""
    path = wanted.model.startswith("/")
    if path and not wanted.model.startswith(f"{MODELS}/"):
        hint = f"--model-claim is mounted at {MODELS}"
        yield f"{wanted.model} is not below {MODELS}", "--model", hint
    if path and ".." in wanted.model.split("/"):
        yield f"{wanted.model} leads out of {MODELS}", "--model", ""
    if not path and "://" not in wanted.model and not formats.HUB.fullmatch(wanted.model):
        yield f"{wanted.model} is no name on the hub", "--model", "OWNER/NAME, or /models/NAME"


def _names(wanted: Wanted) -> _Found:
    if not formats.DNS_1035.fullmatch(wanted.name):
        hint = "small letters, digits and dashes, a letter first"
        yield f"{wanted.name} is no DNS label (RFC 1035)", "--name", hint
    longest = LONGEST_NAME[wanted.kind]
    if wanted.kind == "lws":
        longest -= len(str(max(wanted.replicas, wanted.max_replicas)))
    if len(wanted.name) > longest:
        what = f"has {len(wanted.name)} characters, {longest} at most"
        yield what, "--name", f"--kind {wanted.kind} makes longer names of it"
    for name, pattern, kind in (
        ("namespace", formats.DNS_1123, "a namespace"),
        ("model_claim", formats.SUBDOMAIN, "a PersistentVolumeClaim"),
        ("cache_claim", formats.SUBDOMAIN, "a PersistentVolumeClaim"),
        ("hf_secret", formats.SUBDOMAIN, "a Secret"),
        ("token_secret", formats.SUBDOMAIN, "a Secret"),
        ("queue", formats.DNS_1123, "a queue"),
        ("topology", formats.KEY, "a label"),
        ("image", formats.IMAGE, "an image"),
    ):
        value = getattr(wanted, name)
        if value and not pattern.fullmatch(value):
            yield f"{value} is no name of {kind}", _option(name), ""
    if not formats.resource(wanted.card, "1", whole=True):
        hint = "such as habana.ai/gaudi"
        yield f"{wanted.card} is no name of an extended resource", "--resource", hint
    seen = set()
    for label in wanted.node_label:
        key, equals, value = label.partition("=")
        if not (equals and formats.KEY.fullmatch(key) and formats.VALUE.fullmatch(value)):
            yield f"{label} is no KEY=VALUE", "--node-label", ""
        if key in seen:
            yield f"{key} is given twice", "--node-label", "a node has one value of a label"
        seen.add(key)


def _variables(wanted: Wanted) -> _Found:
    made = replace(wanted, env=())
    ours = [plain(one) for one in (*pod.variables(made), *pod.storage(made)[0])]
    taken = {str(one["name"]): "is set here already" for one in ours if isinstance(one, dict)}
    taken |= {"VLLM_PORT": "breaks starts where it is set"} | _SECRETS
    for each in wanted.env:
        name, equals, _ = each.partition("=")
        if not equals or not formats.VARIABLE.fullmatch(name):
            yield f"{each} is no NAME=VALUE", "--env", ""
        elif name in taken:
            yield f"{name} {taken[name]}", "--env", ""
        taken[name] = "is given twice"


def _together(wanted: Wanted) -> _Found:
    if wanted.model.startswith("/") != bool(wanted.model_claim):
        what = "a path needs the claim that has it, and a claim needs a path in it"
        yield what, "--model-claim", f"--model {MODELS}/NAME --model-claim CLAIM"
    for name in ("cache_claim", "hf_secret"):
        if wanted.model_claim and getattr(wanted, name):
            yield "is for a model on the hub, and this one is in a claim", _option(name), ""
    if wanted.topology == "kubernetes.io/hostname":
        what = "a group of whole nodes cannot be on one host"
        yield what, "--topology", "name the label of a rack or a block"
    for field in fields(wanted):
        if field.name in _NOT_FOR[wanted.kind] and getattr(wanted, field.name) != field.default:
            yield f"is not for --kind {wanted.kind}", _option(field.name), ""
    if wanted.user and wanted.fixes == "zipapp":
        hint = "--fixes overlay or image"
        yield "another user cannot write the fixes into the image's files", "--user", hint
    if wanted.kind in ("ray", "dynamo"):
        if wanted.fixes != "image":
            what = f"--kind {wanted.kind} starts vLLM by itself: the fixes have to be in the image"
            yield what, "--fixes", "--fixes image"
        if wanted.platform != "nvidia":
            yield f"--kind {wanted.kind} is not for Gaudi", "--platform", "--platform nvidia"
    if wanted.gang and wanted.gang not in GANGS_OF[wanted.kind]:
        there = ", ".join(GANGS_OF[wanted.kind]) or "none"
        yield f"{wanted.gang} is not for --kind {wanted.kind}", "--gang", f"there is: {there}"
    if bool(wanted.gang) != bool(wanted.queue):
        yield "--gang and --queue go together", "--queue", ""


def _behind(wanted: Wanted) -> _Found:
    """The words behind ``--``: what launch refuses there, and what the manifest has said."""
    hint = "`vllm-fixes manifest --help` shows the options"
    try:
        plan.settings(1, 1, 1, "vllm", wanted.model, wanted.arguments, {})
    except FixesError as error:
        for problem in error.problems:
            yield problem.what, "", hint
    for name in _ELSEWHERE:
        if plan.option(wanted.arguments, name):
            yield f"{name} behind --: the API is where --port says", "", hint
    if plan.option(wanted.arguments, "--host").startswith(("127.", "localhost", "::1")):
        yield "--host behind --: nobody outside the pod would reach the API there", "", hint
    if wanted.kind == "ray":
        for word in filter(formats.OPTION.match, wanted.arguments):
            name = SHORT.get(word.partition("=")[0], word.partition("=")[0])
            if not name.startswith("--") or "." in name:
                yield f"{word} behind --: is no keyword of vLLM's engine", "", "give its long name"


def _offered(wanted: Wanted) -> _Found:
    """What a profile has for these nodes: else each of their starts would end with 1 or 2."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+", wanted.profile):
        yield f"{wanted.profile} is no release such as v0.30.0", "--release", ""
        return
    authored = catalogue.find()
    if wanted.profile not in (known := authored.profiles()):
        yield f"there is no profile {wanted.profile}", "--release", f"there are: {', '.join(known)}"
        return
    lock = authored.lock(wanted.profile)
    for name in wanted.bundles:
        if name not in lock.bundles and name not in lock.fixes:
            hint = f"`vllm-fixes list --profile {wanted.profile}`"
            yield f"no fix or bundle {name} in profile {wanted.profile}", "--fix", hint
    for platform in lock.platforms:
        served = platform.name != wanted.platform or platform.fixes
        if not served and not lock.bundles.keys().isdisjoint(wanted.bundles):
            what = f"{wanted.profile} has nothing for {platform.name}: {platform.why}"
            yield what, "--release", "`vllm-fixes list --all` shows what there is"


def _option(name: str) -> str:
    """The option that sets a parameter."""
    return f"--{name.replace('_', '-')}"
