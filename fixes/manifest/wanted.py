"""What is wanted: the parameters of a manifest, and what cannot be asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from fixes.errors import ExitCode, FixesError, Problem

KINDS = ("lws", "stormservice", "ray", "dynamo")
PLATFORMS = ("gaudi", "nvidia")
WAYS = ("image", "zipapp", "overlay")
GANGS = ("volcano", "kueue", "kai")
#: What is written for each kind; the rest is refused rather than guessed.
GANGS_OF = {
    "lws": GANGS,
    "stormservice": ("volcano",),
    "ray": (),
    "dynamo": ("volcano", "kai"),
}
#: What a kind has no use for: said, and not passed over.
_FOR_LAUNCH = ("grace", "meet", "startup", "fail_slow", "token_secret", "fix", "user")
_NOT_FOR = {
    "lws": (),
    "stormservice": ("topology", "surge"),
    "ray": ("topology", "surge", "max_replicas", "port", *_FOR_LAUNCH),
    "dynamo": (
        *("topology", "surge", "max_replicas", "resource", "also", "node_label"),
        *_FOR_LAUNCH,
    ),
}
#: A LeaderWorkerSet's name and its digits: pods are <name>-<group>-<worker>.
LONGEST_NAME = 51
#: What a launcher needs beside `--grace` to end everything, and the pause before SIGTERM.
BESIDE_GRACE = 15
PRE_STOP = 5
#: Seconds for applying and verifying the fixes, on a slow disk.
APPLYING = 300
MODELS = "/models"
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"[1-9]\d*(m|[KMGT]i?)?")
_DEFAULT_RELEASE = {"gaudi": "v0.26.0", "nvidia": "v0.30.0"}
_RESOURCE = {"gaudi": "habana.ai/gaudi", "nvidia": "nvidia.com/gpu"}
_MEMORY = {"gaudi": "409Gi", "nvidia": "512Gi"}
#: Built by docker/; the second of each pair is what these are built from.
_IMAGES = {
    "gaudi": ("vllm-fixed-gaudi-ubuntu", "vllm-gaudi-ubuntu"),
    "nvidia": ("vllm-fixed", "vllm/vllm-openai"),
}


@dataclass(frozen=True)
class Wanted:
    """One replica, or several, of one model. Empty means: the default of kind and platform."""

    model: str
    kind: str = "lws"
    platform: str = "gaudi"
    name: str = "vllm-pp"
    namespace: str = ""
    image: str = ""
    release: str = ""
    fixes: str = "image"
    fix: tuple[str, ...] = ()
    tensor_parallel_size: int = 8
    pipeline_parallel_size: int = 2
    cards: int = 8
    resource: str = ""
    also: tuple[str, ...] = ()
    cpu: str = "64"
    memory: str = ""
    shm: str = "64Gi"
    model_claim: str = ""
    cache_claim: str = ""
    hf_secret: str = ""
    token_secret: str = ""
    node_label: tuple[str, ...] = ()
    topology: str = ""
    replicas: int = 1
    max_replicas: int = 0
    surge: bool = False
    gang: str = ""
    queue: str = ""
    user: int = 0
    port: int = 8000
    grace: int = 30
    meet: int = 1800
    startup: int = 3600
    fail_slow: int = 60
    arguments: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """The nodes of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size // self.cards

    @property
    def profile(self) -> str:
        """The release, which is the profile's name."""
        return self.release or _DEFAULT_RELEASE[self.platform]

    @property
    def image_name(self) -> str:
        """The image: with the fixes in it, or as it is published."""
        fixed, stock = _IMAGES[self.platform]
        if self.kind == "ray":
            fixed += "-ray"
        elif self.kind == "dynamo":
            fixed += "-dynamo"
        return self.image or f"{fixed if self.fixes == 'image' else stock}:{self.profile}"

    @property
    def card(self) -> str:
        """The extended resource that a card is."""
        return self.resource or _RESOURCE[self.platform]

    @property
    def memory_size(self) -> str:
        """A pod's memory, shared memory included."""
        return self.memory or _MEMORY[self.platform]

    @property
    def secret(self) -> str:
        """The Secret that holds the launchers' token."""
        return self.token_secret or f"{self.name}-token"

    @property
    def termination(self) -> int:
        """Seconds between the wish to end a pod and SIGKILL."""
        return self.grace + BESIDE_GRACE + PRE_STOP

    @property
    def budget(self) -> int:
        """Seconds from a container's start until it has to be ready."""
        return APPLYING + self.meet + self.startup

    def words(self) -> list[str]:
        """The command line that says the same, without what is the default."""
        found: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            option = f"--{field.name.replace('_', '-')}"
            if field.name == "arguments" or value == field.default:
                continue
            if isinstance(value, tuple):
                found += [word for one in value for word in (option, one)]
            else:
                found += [option] if value is True else [option, str(value)]
        return [*found, "--", *self.arguments] if self.arguments else found

    def check(self) -> None:
        """Raises FixesError (usage) with everything that cannot be rendered."""
        problems = [
            Problem(ExitCode.USAGE, "usage", what, where, hint)
            for what, where, hint in (*self._sizes(), *self._names(), *self._together())
        ]
        if problems:
            raise FixesError(*problems)

    def _sizes(self) -> Iterator[tuple[str, str, str]]:
        numbers = ("tensor_parallel_size", "pipeline_parallel_size", "cards", "replicas", "startup")
        wrong = [name for name in (*numbers, "port") if getattr(self, name) < 1]
        wrong += [
            name
            for name in ("max_replicas", "user", "grace", "meet", "fail_slow")
            if getattr(self, name) < 0
        ]
        for name in wrong:
            yield "is too small", f"--{name.replace('_', '-')}", ""
        if wrong:
            return
        cards = self.tensor_parallel_size * self.pipeline_parallel_size
        if cards % self.cards:
            what = f"{cards} cards are no whole number of nodes with {self.cards}"
            yield what, "--cards", "nodes are asked for whole"
        elif self.nodes < 2:
            yield f"{cards} cards are one node: a Deployment is enough", "--cards", ""
        if self.max_replicas and self.max_replicas < self.replicas:
            yield f"is less than --replicas {self.replicas}", "--max-replicas", ""
        for name, value in (("cpu", self.cpu), ("memory", self.memory_size), ("shm", self.shm)):
            if not _QUANTITY.fullmatch(value):
                yield f"{value} is no quantity such as 64 or 64Gi", f"--{name}", ""
        for also in self.also:
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?=[1-9]\w*", also):
                yield f"{also} is no RESOURCE=COUNT", "--also", ""
        for label in self.node_label:
            if not re.fullmatch(r"[\w./-]+=[\w.-]*", label):
                yield f"{label} is no KEY=VALUE", "--node-label", ""

    def _names(self) -> Iterator[tuple[str, str, str]]:
        for field in fields(self):
            value = getattr(self, field.name)
            words = value if isinstance(value, tuple) else (value,)
            if not all(word.isprintable() for word in words if isinstance(word, str)):
                yield "has a letter that cannot be printed", f"--{field.name.replace('_', '-')}", ""
        if not _DNS_1035.fullmatch(self.name):
            hint = "small letters, digits and dashes, a letter first"
            yield f"{self.name} is no DNS label (RFC 1035)", "--name", hint
        longest = LONGEST_NAME - len(str(max(self.replicas, self.max_replicas)))
        if len(self.name) > longest:
            yield f"has {len(self.name)} characters, {longest} at most", "--name", ""
        if not re.fullmatch(r"v\d+\.\d+\.\d+", self.profile):
            yield f"{self.profile} is no release such as v0.30.0", "--release", ""

    def _together(self) -> Iterator[tuple[str, str, str]]:
        if self.model.startswith("/") and not self.model.startswith(f"{MODELS}/"):
            hint = f"--model-claim is mounted at {MODELS}"
            yield f"{self.model} is not below {MODELS}", "--model", hint
        if self.model.startswith("/") != bool(self.model_claim):
            what = "a path needs the claim that has it, and a claim needs a path in it"
            yield what, "--model-claim", f"--model {MODELS}/NAME --model-claim CLAIM"
        if self.topology == "kubernetes.io/hostname":
            what = "a group of whole nodes cannot be on one host"
            yield what, "--topology", "name the label of a rack or a block"
        for field in fields(self):
            if field.name in _NOT_FOR[self.kind] and getattr(self, field.name) != field.default:
                yield f"is not for --kind {self.kind}", f"--{field.name.replace('_', '-')}", ""
        if self.user and self.fixes == "zipapp":
            hint = "--fixes overlay or image"
            yield "another user cannot write the fixes into the image's files", "--user", hint
        if self.kind in ("ray", "dynamo"):
            if self.fixes != "image":
                what = (
                    f"--kind {self.kind} starts vLLM by itself: the fixes have to be in the image"
                )
                yield what, "--fixes", "--fixes image"
            if self.platform != "nvidia":
                yield f"--kind {self.kind} is not for Gaudi", "--platform", "--platform nvidia"
        if self.gang and self.gang not in GANGS_OF[self.kind]:
            there = ", ".join(GANGS_OF[self.kind]) or "none"
            yield f"{self.gang} is not for --kind {self.kind}", "--gang", f"there is: {there}"
        if bool(self.gang) != bool(self.queue):
            yield "--gang and --queue go together", "--queue", ""
