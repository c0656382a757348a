"""Ways of serving a model, and which of them have to give the same answers."""

from __future__ import annotations

from dataclasses import dataclass

from . import models, scenarios
from .scenarios import Scenario
from .server import stages

NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
BF16 = ("--dtype", "bfloat16")


@dataclass(frozen=True)
class Engine:
    """How a model is served: the stages and the nodes they are on, options of the command
    line, environment variables, and fixes beyond the bundle `pipeline-parallel`."""

    stages: int = 1
    nodes: int = 1
    model: str = models.LLAMA
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    fixes: tuple[str, ...] = ()

    def arguments(self) -> tuple[str, ...]:
        """The options of its command line, but for those of the second node."""
        return (*(stages(self.stages) if self.stages > 1 else ()), *self.options)


ONE = Engine()


@dataclass(frozen=True)
class Case:
    """A fixed engine whose answers are to be those of a stock one with one stage.

    `grows` names a counter that shows that what the case is about did occur. With `control`
    a difference counts only if the stock engine, started once more, does not differ from itself.
    """

    name: str
    engine: Engine
    scenarios: tuple[Scenario, ...]
    reference: Engine = ONE
    grows: str = ""
    control: bool = False


def of_model(model: str, options: tuple[str, ...] = (), fixes: tuple[str, ...] = ()) -> Case:
    """Two nodes that serve a tiny random model."""
    asked = (*scenarios.SMOKE, scenarios.ABORTS)
    engine = Engine(2, 2, model, options, fixes=fixes)
    name = f"two nodes, {model}{', bfloat16' if options == BF16 else ''}"
    return Case(name, engine, asked, Engine(1, 1, model, options), control=options == BF16)


CASES = (
    Case("two nodes", Engine(2, 2), scenarios.PLAIN),
    Case(
        "two nodes, ngram",
        Engine(
            2, 2, options=("--speculative-config", NGRAM), fixes=("pp-spec-decode", "cpu-ngram")
        ),
        (
            *scenarios.SMOKE,
            scenarios.REPEATING_TEXT,
            scenarios.MANY,
            scenarios.FORMS,
            scenarios.MIXED,
            scenarios.ABORTS,
        ),
        grows=ACCEPTED,
    ),
    Case(
        "two nodes, few blocks, 21 layers and 9",
        Engine(
            2,
            2,
            options=(
                *("--num-gpu-blocks-override", "24"),
                *("--max-num-seqs", "4", "--max-model-len", "2048"),
            ),
            variables=(("VLLM_PP_LAYER_PARTITION", "21,9"),),
        ),
        (scenarios.CROWD, scenarios.EIGHT, scenarios.MANY, scenarios.REPEATS),
        grows="vllm:num_preemptions",
    ),
    Case(
        "one node, three stages",
        Engine(3, 1),
        (*scenarios.SMOKE, scenarios.MANY, scenarios.FORMS, scenarios.ABORTS),
    ),
    of_model("qwen3-moe"),
    of_model("ernie45-moe-tied", fixes=("ernie45-tied-pp",)),
    # On a processor with AVX512-BF16 the convolution before a Mamba or GDN layer knows no float32.
    of_model("granite-hybrid", BF16, ("granite-hybrid-pp-load",)),
    of_model("qwen3-next", BF16),
    of_model("falcon-h1-tied", BF16, ("falcon-h1-tied-pp",)),
    Case(
        "two nodes, bfloat16",
        Engine(2, 2, options=BF16),
        scenarios.SMOKE,
        Engine(options=BF16),
        control=True,
    ),
)
