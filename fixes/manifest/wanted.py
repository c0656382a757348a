"""What is wanted: the parameters of a manifest."""

from __future__ import annotations

from dataclasses import dataclass, fields

KINDS = ("lws", "stormservice", "ray", "dynamo")
PLATFORMS = ("gaudi", "nvidia")
WAYS = ("image", "zipapp", "overlay")
GANGS = ("volcano", "kueue", "kai")
#: What a launcher needs beside `--grace` to end everything, and the pause before SIGTERM.
BESIDE_GRACE = 15
PRE_STOP = 5
#: Seconds for applying and verifying the fixes, on a slow disk.
APPLYING = 300
MODELS = "/models"
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
    env: tuple[str, ...] = ()
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
    def bundles(self) -> tuple[str, ...]:
        """The names of what is to be applied."""
        return self.fix or ("pipeline-parallel",)

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
    def config_map(self) -> str:
        """The ConfigMap that holds the tool with this release's fixes, and no other's."""
        return f"vllm-fixes-{self.profile}"

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
