"""What `fit` counts is what vLLM's own classes make, to the byte."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import cache
import fit_models
import pytest

from fixes.fit import headers, partition, planning, reading
from fixes.fit.cache import Layout
from fixes.fit.sharing import Sharing

from . import models

pytestmark = pytest.mark.e2e

ORACLE = Path(__file__).parents[1] / "fit_oracle.py"
CONTEXT, BATCHED = 16384, 4096
SMALL = (models.LLAMA, *models.CONFIGS)
#: vLLM itself cannot be built over two stages: a fault that bundle `pp-models` takes away.
BROKEN = ("ernie45-moe-tied", "falcon-h1-tied")
LARGE = {
    **dict.fromkeys(fit_models.CONFIGS, (8, 2)),
    "gemma-3-1b": (4, 2),
    "Falcon-H1-34B": (2, 3),
    "gpt-oss-20b": (2, 1),  # nothing else has a kernel for its experts on a CPU
}


class Case(NamedTuple):
    """A model and a split."""

    name: str
    folder: Path
    tensor: int
    pipeline: int
    partition: tuple[int, ...] = ()

    @property
    def context(self) -> int:
        """As long as the model may be."""
        return min(CONTEXT, reading.read(self.folder).longest)


def asked(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """vLLM's answers, of one process."""
    told = [
        {**case._asdict(), "folder": str(case.folder), "context": case.context, "batched": BATCHED}
        for case in cases
    ]
    (folder / "asked.json").write_text(json.dumps(told), "utf-8")
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DIST_IDENT": "fit",
    }
    done = subprocess.run(
        [cache.venv("0.30.0") / "bin/python", ORACLE, folder / "asked.json", folder / "told.json"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads((folder / "told.json").read_text("utf-8"))
    return answers


def check(case: Case, told: dict[str, Any]) -> None:
    assert "error" not in told, told["error"]
    model = reading.read(case.folder, "bfloat16", "float32")
    sharing = Sharing(model, case.tensor)
    layers = case.partition or partition.default(len(model.layers), case.pipeline)
    copies = -(-model.absorbed // case.tensor)  # made when weights are loaded: not here
    hidden = json.loads((case.folder / "config.json").read_text("utf-8"))["hidden_size"]
    layout = Layout(model, case.tensor, 2, 16 if model.latent else 128, told["states"])
    start = 0
    for number, count in enumerate(layers):
        end = start + count
        weights = sharing.stage(number, case.pipeline, start, end) - count * copies
        # Qwen3-Next holds its last norm on the last stage only.
        assert weights - told["weights"][number] in (0, 2 * hidden), (case, number)
        assert layout.per_block(start, end) == told["per_block"][number], (case, number)
        start = end
    assert layout.block == told["block_size"], case
    # Every stage gets as many blocks as the one with the largest has room for.
    assert set(told["pool"]) == {2**40 // max(told["per_block"])}, case
    assert layout.blocks(case.context, told["in_flight"]) == told["blocks"], case


def test_small_models_take_what_vllm_makes_of_them(tmp_path: Path) -> None:
    splits = dict.fromkeys(SMALL, ((1, 1), (1, 2), (2, 2)))
    splits |= dict.fromkeys(BROKEN, ((1, 1), (2, 1))) | {models.LLAMA: ((1, 1), (3, 4))}
    cases = [
        Case(name, models.folder(name), tensor, pipeline)
        for name in SMALL
        for tensor, pipeline in splits[name]
    ]
    cases.append(cases[0]._replace(pipeline=3, partition=(9, 16, 5)))
    for case, told in zip(cases, asked(cases, tmp_path), strict=True):
        check(case, told)


def test_the_names_and_shapes_of_a_config_are_those_of_the_checkpoint() -> None:
    """So that what is estimated from a config alone is what the weights would say."""
    for name in SMALL:
        folder = models.folder(name)
        values = json.loads((folder / "config.json").read_text("utf-8"))
        exact, estimated = reading.read(folder), reading.describe(name, values)
        assert headers.files(folder)[0] and exact.exact and not estimated.exact
        assert set(exact.tensors) == set(estimated.tensors), name


@pytest.mark.full
def test_large_models_take_what_vllm_makes_of_them(tmp_path: Path) -> None:
    cases = []
    for name, (tensor, pipeline) in LARGE.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(fit_models.CONFIGS[name]), "utf-8")
        cases += [Case(name, folder, tensor, pipeline), Case(name, folder, min(tensor, 4), 1)]
        if name == "Falcon-H1-34B":
            cases[-1] = cases[-1]._replace(tensor=1)
        if name == "gpt-oss-20b":
            cases.pop()
    for case, told in zip(cases, asked(cases, tmp_path), strict=True):
        check(case, told)


SQUARE = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}


def compressed(bits: int, group: int) -> dict[str, Any]:
    """4 bit in groups, or 8 bit in rows."""
    weights = {"num_bits": bits, "type": "float" if bits == 8 else "int", "symmetric": True}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    token = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "token",
        "dynamic": True,
    }
    rows = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": token if bits == 8 else None,
    }
    form = "float-quantized" if bits == 8 else "pack-quantized"
    groups = {"group_0": rows}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": groups,
    }


QUANTISED = [
    ("DeepSeek-V3", 8, SQUARE),
    ("Qwen3-32B", 8, SQUARE),
    ("Qwen2.5-72B", 2, AWQ),
    ("Llama-3.1-8B", 2, compressed(4, 128)),
    ("Llama-3.1-8B", 2, compressed(8, 0)),
]


@pytest.mark.full
def test_estimates_of_quantised_weights_are_near_what_vllm_makes(tmp_path: Path) -> None:
    cases = []
    for number, (name, tensor, how) in enumerate(QUANTISED):
        folder = tmp_path / str(number)
        folder.mkdir()
        values = fit_models.CONFIGS[name] | {"quantization_config": how}
        (folder / "config.json").write_text(json.dumps(values), "utf-8")
        cases.append(Case(name, folder, tensor, 1))
    for case, told in zip(cases, asked(cases, tmp_path), strict=True):
        assert "error" not in told, told["error"]
        model = reading.read(case.folder)
        copies = -(-model.absorbed // case.tensor) * len(model.layers)
        weights = Sharing(model, case.tensor).stage(0, 1, 0, len(model.layers)) - copies
        assert weights == pytest.approx(told["weights"][0], rel=0.001), case


@pytest.mark.full
def test_what_is_refused_is_what_vllm_refuses(tmp_path: Path) -> None:
    refused = [("Falcon-H1-34B", 4), ("gpt-oss-20b", 16), ("Llama-3.1-8B", 3)]
    cases = []
    for name, tensor in refused:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(fit_models.CONFIGS[name]), "utf-8")
        cases.append(Case(name, folder, tensor, 1))
        assert planning.allowed(reading.read(folder), tensor)
    for told in asked(cases, tmp_path):
        assert "error" in told
