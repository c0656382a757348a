"""`fit`: what a model takes of each card, which split it proposes, and what it refuses."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cache
import fit_models
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from release import launch

from fixes.errors import FixesError
from fixes.fit import cards, headers, page, partition, planning, reading
from fixes.fit.cache import Layout
from fixes.fit.model import GIB, Model
from fixes.fit.planning import Demand, Place, Plan
from fixes.fit.sharing import Sharing

RELEASES = (
    "0.26.0",
    "0.27.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
)
DOCUMENT = (Path(__file__).parents[1] / "docs/fit.md").read_text("utf-8")
H100 = cards.named("h100")


def model(name: str, **more: Any) -> Model:
    return reading.describe(name, fit_models.CONFIGS[name] | more)


def folder(path: Path, name: str, **more: Any) -> Path:
    """A folder with a config.json and no weights."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(fit_models.CONFIGS[name] | more), "utf-8")
    return path


def weights(path: Path, made: Model, extra: tuple[str, ...] = (), files: int = 2) -> None:
    """Files of the model's tensors, without the bytes that the headers speak of."""
    names = [f"model-{number}.safetensors" for number in range(files)]
    content: list[dict[str, Any]] = [{"__metadata__": {"format": "pt"}} for _ in names]
    index = {}
    tensors = [
        (one.name.replace("*", str(n)), one) for one in made.tensors for n in range(one.count)
    ]
    tensors += [(name, made.tensors[0]) for name in extra]
    for number, (name, one) in enumerate(tensors):
        size = 2
        for each in one.shape:
            size *= each
        entry = {"dtype": "BF16", "shape": one.shape, "data_offsets": [0, size]}
        content[number % files][name] = entry
        index[name] = names[number % files]
    for name, entries in zip(names, content, strict=True):
        text = json.dumps(entries).encode()
        (path / name).write_bytes(len(text).to_bytes(8, "little") + text)
    (path / headers.INDEX).write_text(json.dumps({"weight_map": index}), "utf-8")


def fit(*words: str | Path) -> tuple[int, str, str]:
    done = launch(sys.executable, "fit", *map(str, words))
    assert "Traceback" not in done.stderr and "internal" not in done.stderr
    return done.returncode, done.stdout, done.stderr


# What a model is made of


@pytest.mark.parametrize("name", fit_models.PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    assert model(name).parameters / 1e9 == pytest.approx(fit_models.PUBLISHED[name], rel=0.01)


def test_every_family_has_a_model_that_was_compared() -> None:
    """tests/e2e/test_fit.py compares these with vLLM's own, and the engine tests' models."""
    types = {config["model_type"] for config in fit_models.CONFIGS.values()} | {"ernie4_5_moe"}
    assert types == set(reading.FAMILIES)


def test_headers_say_the_same_as_the_config(tmp_path: Path) -> None:
    made = model("DeepSeek-V2-Lite")
    weights(folder(tmp_path, "DeepSeek-V2-Lite"), made)
    read = reading.read(tmp_path)
    assert read.exact and not made.exact
    assert set(read.tensors) == set(made.tensors)


def test_what_is_stored_and_not_loaded_is_not_counted(tmp_path: Path) -> None:
    made = model("Llama-3.1-8B")
    extra = ("model.layers.32.eh_proj.weight", "mtp.fc.weight")
    weights(folder(tmp_path, "Llama-3.1-8B"), made, extra)
    read = reading.read(tmp_path)
    assert read.weights == made.weights
    assert "2 stored tensors (1.96 GiB) are not loaded" in " ".join(read.notes)


def test_a_file_that_is_missing_makes_it_an_estimate(tmp_path: Path) -> None:
    weights(folder(tmp_path, "Llama-3.1-8B"), model("Llama-3.1-8B"))
    (tmp_path / "model-1.safetensors").unlink()
    read = reading.read(tmp_path)
    assert not read.exact and read.weights == model("Llama-3.1-8B").weights
    assert "1 of 2 files of the weights are not there" in read.notes[0]


def test_quantised_weights_are_as_large_as_stored(tmp_path: Path) -> None:
    made = model("Llama-3.1-8B")
    weights(folder(tmp_path, "Llama-3.1-8B"), made, files=1)
    path = tmp_path / "model-0.safetensors"
    entries = json.loads(path.read_bytes()[8:])
    name = "model.layers.0.self_attn.q_proj.weight"
    entries[name] |= {"dtype": "F8_E4M3", "data_offsets": [0, 4096 * 4096]}
    entries[f"{name}_scale_inv"] = {"dtype": "F32", "shape": [32, 32], "data_offsets": [0, 4096]}
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    assert reading.read(tmp_path).weights == made.weights - 4096 * 4096 + 4096
    assert reading.read(tmp_path, "float32").weights > made.weights * 1.9


def test_estimates_of_quantised_weights() -> None:
    """fp8 with blocks of 128: a byte, and 4 for each block; published: 642 GiB of files."""
    square = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    eight = model("DeepSeek-V3", quantization_config=square)
    assert eight.weights / GIB == pytest.approx(626, rel=0.01)  # without 11.5 B for prediction
    groups = {"quant_method": "awq", "bits": 4, "group_size": 128}
    four = model("Qwen2.5-72B", quantization_config=groups)
    assert four.weights / GIB == pytest.approx(38.7, rel=0.02)  # the published files: 41.5 GB


# What a card holds of it


def test_heads_are_split_and_repeated_and_latent_vectors_are_neither() -> None:
    grouped = [Layout(model("Qwen3-235B-A22B"), tensor, 2) for tensor in (1, 4, 8)]
    assert [one.per_block(0, 94) // 16 // 94 for one in grouped] == [2048, 512, 512]
    latent = [Layout(model("DeepSeek-V3"), tensor, 2) for tensor in (1, 8)]
    assert [one.per_block(0, 61) // 16 // 61 for one in latent] == [1152, 1152]
    assert Layout(model("DeepSeek-V3"), 8, 1).per_block(0, 61) == latent[1].per_block(0, 61) // 2


def test_a_window_bounds_what_a_sequence_takes() -> None:
    layout = Layout(model("gpt-oss-20b"), 1, 2)
    short, long = (layout.blocks(context, 4096) for context in (16384, 131072))
    full = (131072 - 16384) // 16
    assert long - short == full  # one group of 12 layers has all tokens, the other a window
    assert layout.blocks(131072, 4096) == 131072 // 16 + (128 - 1 + 4096 + 15) // 16 + 1


def test_states_do_not_grow_and_make_blocks_larger() -> None:
    layout = Layout(model("granite-4.0-h-small"), 1, 2)
    assert layout.block > 16
    assert len(layout.groups) == 10  # 4 layers of attention, and 36 with states in nine groups
    assert layout.blocks(layout.block * 2, 0) - layout.blocks(layout.block, 0) == 1


def test_a_tied_head_is_held_again_on_the_last_stage() -> None:
    values = fit_models.CONFIGS["Llama-3.1-8B"] | {"tie_word_embeddings": True}
    sharing = Sharing(reading.describe("tied", values), 1)
    table = 128256 * 4096 * 2
    middle, last = (sharing.ends(stage, 4) for stage in (1, 3))
    assert (sharing.ends(0, 4), middle, last) == (table, 0, table + 4096 * 2)
    assert sharing.ends(0, 1) == table + 4096 * 2


def test_some_models_give_every_stage_both_tables() -> None:
    sharing = Sharing(model("Qwen3-235B-A22B"), 8)
    assert sharing.ends(0, 4) == sharing.ends(2, 4) == 2 * 151936 * 4096 * 2 // 8 + 4096 * 2


def test_experts_can_be_split_by_their_number() -> None:
    made = model("Qwen3-235B-A22B")
    assert Sharing(made, 8, True).layers == Sharing(made, 8).layers
    uneven = replace(made, experts=128)
    whole = 3 * 4096 * 1536 * 2
    assert Sharing(uneven, 3, True).layers[0] > 43 * whole


def test_gaudi_takes_its_share_of_what_is_left() -> None:
    card = cards.named("gaudi3")
    assert card.room(28 * GIB, 4 * GIB, 0.5) == pytest.approx(96 * 0.5 * 0.9 * GIB, abs=1)
    assert H100.room(28 * GIB, 4 * GIB, 0.5) == pytest.approx((79.6 * 0.5 - 32) * GIB, abs=1)


REFUSED = [
    ("Llama-3.1-8B", 3, {}, "32 attention heads cannot be split over 3"),
    ("Qwen3-32B", 16, {"num_key_value_heads": 10}, "10 KV heads can be neither split nor"),
    ("gpt-oss-20b", 16, {}, "vLLM repeats none of them"),
    ("Falcon-H1-34B", 4, {}, "2 groups of states cannot be split over 4"),
    ("DeepSeek-V2-Lite", 8, {"moe_intermediate_size": 1410}, "an expert's width of 1410"),
    (
        "Qwen3-235B-A22B",
        8,
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        "over 8 cards cuts blocks of 128 (--enable-expert-parallel splits none)",
    ),
]


@pytest.mark.parametrize(("name", "tensor", "more", "why"), REFUSED)
def test_splits_that_vllm_refuses(
    tmp_path: Path, name: str, tensor: int, more: dict[str, Any], why: str
) -> None:
    made = folder(tmp_path, name, **more)
    size = ("--card", "mi325x", "--cards", "16", "--context", "1024")
    code, out, said = fit(made, "-tp", str(tensor), *size)
    assert (code, out) == (2, "") and why in said and f"bad-split: PP 1 x TP {tensor}: " in said
    assert fit(made, *size)[0] in (0, 1)  # and is not proposed either


# Partitions


@pytest.mark.wheels
@pytest.mark.parametrize("release", RELEASES)
def test_the_default_partition_and_utilization_are_the_release_s(release: str) -> None:
    tree = cache.tree("vllm", release) / "vllm"
    source = (tree / "distributed/utils.py").read_text("utf-8")
    (function,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_pp_indices"
    )
    scope: dict[str, Any] = {
        "envs": SimpleNamespace(VLLM_PP_LAYER_PARTITION=None),
        "logger": SimpleNamespace(info=lambda *words: None),
    }
    exec(compile(ast.Module([function], []), "utils", "exec"), scope)
    for layers, stages in product(range(16, 130), range(1, 17)):
        spans = [scope["get_pp_indices"](layers, stage, stages) for stage in range(stages)]
        assert tuple(end - start for start, end in spans) == partition.default(layers, stages)
    config = (tree / "config/cache.py").read_text("utf-8")
    assert f"gpu_memory_utilization: float = Field(default={cards.UTILIZATION}" in config


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=4, max_size=9), st.integers(2, 4), st.data())
def test_the_partition_is_the_most_even_of_all_that_hold(
    sizes: list[int], stages: int, data: st.DataObject
) -> None:
    ends = data.draw(st.lists(st.integers(0, 9), min_size=stages, max_size=stages))
    room = data.draw(st.integers(1, 40))

    def holds(stage: int, start: int, end: int) -> bool:
        return ends[stage] + sum(sizes[start:end]) <= room

    def distance(parts: tuple[int, ...]) -> int:
        wanted = partition.default(len(sizes), stages)
        return sum((part - want) ** 2 for part, want in zip(parts, wanted, strict=True))

    def possible(parts: tuple[int, ...]) -> bool:
        starts = [sum(parts[:stage]) for stage in range(stages)]
        return all(holds(n, at, at + parts[n]) for n, at in enumerate(starts))

    every = [
        parts
        for parts in product(range(1, len(sizes)), repeat=stages)
        if sum(parts) == len(sizes) and possible(parts)
    ]
    found = partition.closest(len(sizes), stages, holds)
    assert (found is None) == (not every)
    if found:
        assert found in every and distance(found) == min(map(distance, every))


# Plans


def plan(name: str, context: int, concurrency: int, place: Place, **more: Any) -> Plan:
    made = model(name, **more)
    return planning.propose(made, place, Demand(context, concurrency, 2))[0]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(fit_models.CONFIGS)),
    st.integers(1, 32768),
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from(["h100", "gaudi3", "mi325x"]),
)
def test_what_is_said_to_hold_holds_and_no_more(
    name: str, context: int, concurrency: int, number: int, nodes: int, card: str
) -> None:
    found = plan(name, context, concurrency, Place(cards.named(card), number, nodes))
    demand = found.demand

    def holds(**other: int) -> bool:
        return replace(found, demand=replace(demand, **other)).fits

    assert found.fits == (found.spare >= 0) == (found.most >= concurrency)
    assert found.fits == (found.longest >= context)
    if found.most:
        assert holds(concurrency=found.most) and not holds(concurrency=found.most + 1)
    if found.longest:
        assert holds(context=found.longest)
    if found.longest < found.model.longest:
        assert not holds(context=found.longest + found.layout.block)
    assert sum(found.partition) == len(found.model.layers)
    assert found.tensor * found.pipeline <= number * found.nodes
    assert not found.tensor * found.pipeline % found.nodes  # as `launch` has it
    for stage, line in zip(found.stages, page._document(found)["stages"], strict=True):
        whole = stage.weights + line["overhead"] + line["kept_back"] + stage.room
        assert whole == found.place.card.memory


def test_one_node_is_preferred_and_tensor_parallelism_stays_in_a_node() -> None:
    place = Place(H100, 8, 4)
    small = plan("Llama-3.1-8B", 8192, 1, place)
    assert (small.nodes, small.tensor, small.pipeline) == (1, 8, 1)
    assert planning.fewest(small) == 1
    large = plan("Llama-3.1-405B", 8192, 4, place)
    assert (large.nodes, large.tensor, large.pipeline) == (2, 8, 2)
    assert not large.uneven and large.fits


def test_an_uneven_partition_is_proposed_where_only_that_fits() -> None:
    """A head of a large vocabulary: the last stage has less room for layers than others."""
    more = {"vocab_size": 1_500_000, "tie_word_embeddings": True}
    made = model("Llama-3.1-8B", **more)
    place = Place(cards.of(24), 1, 3)
    default = Plan(made, place, Demand(8192, 1, 2), 3, 1, partition.default(32, 3))
    asked = replace(default.demand, concurrency=default.most + 2)
    tight = replace(default, demand=asked)
    assert default.fits and not tight.fits
    found = planning.given(made, place, asked, 1, 3)
    assert found.fits and found.uneven and found.partition[1] > tight.partition[1]
    text = page.Answer("M", found, (), 0, "bfloat16").text()
    listed = ",".join(map(str, found.partition))
    assert f"fits, PP 3 x TP 1 with VLLM_PP_LAYER_PARTITION={listed}" in text
    assert (
        f"start    VLLM_PP_LAYER_PARTITION={listed} vllm-fixes launch --rank N --nnodes 3 " in text
    )
    better = default.better
    assert better and better.pool >= default.pool * 1.05
    assert not default.holding(better.pool + 1)


# The command


def test_the_keys_of_the_document_are_the_documented_ones(tmp_path: Path) -> None:
    found = document(folder(tmp_path / "M", "Llama-3.1-8B"), "--card", "h100", "--cards", "8")
    rows = [line.split("|")[1] for line in DOCUMENT.splitlines() if line.startswith("| `")]
    named = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert set(found) | set(found["plan"]) <= named
    for key in (*found["model"], *found["plan"]["stages"][0]):
        assert f"`{key}`" in DOCUMENT, key


def test_the_cards_and_families_are_the_documented_ones() -> None:
    for name in (*cards.NAMES, *reading.FAMILIES):
        assert f"`{name}`" in DOCUMENT, name
    for name in cards.NAMES:
        assert f"| `{name}` | {cards._GIB[name]:g} |" in DOCUMENT, name


def test_the_page_in_the_document_is_real(tmp_path: Path) -> None:
    folder(tmp_path / "DeepSeek-V3", "DeepSeek-V3")
    words = [
        "--card",
        "gaudi3",
        "--cards",
        "8",
        "--nodes",
        "2",
        "--context",
        "131072",
        "--concurrency",
        "16",
    ]
    done = launch(sys.executable, "fit", "./DeepSeek-V3", *words, cwd=tmp_path)
    told = re.search(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)
    assert told and done.returncode == 0
    assert told[1] == done.stdout
    assert " ".join(words) in DOCUMENT


def test_one_screen_for_two_nodes_of_gaudi(tmp_path: Path) -> None:
    made = folder(tmp_path / "M", "Llama-3.1-405B")
    words = ("--card", "gaudi3", "--cards", "8", "--nodes", "2")
    code, out, said = fit(made, *words, "--context", "131072", "--concurrency", "8")
    assert (code, said) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 24
    assert (
        lines[0] == f"{made}: llama, 126 layers, 128 heads, 8 KV heads, 405.85 billion parameters"
    )
    assert lines[1] == "weights  755.96 GiB in bfloat16, estimated from config.json"
    assert "1 node: does not fit" in out and "2 nodes: fits, PP 2 x TP 8" in out
    # 63 layers of 8 heads over 8 cards, 128 wide, K and V of two bytes, and a block more
    cached = (8 * 131072 + 128) * 63 * 2 * 128 * 2 / GIB
    (row,) = (line for line in lines if line.startswith("0-1    63 each (0-125)"))
    assert f"{cached:.2f}" in row.split()
    assert f"-tp 8 -pp 2 -- {made} --max-model-len 131072 --max-num-seqs 8" in out


def test_the_line_that_starts_it_has_all_that_was_asked(tmp_path: Path) -> None:
    """Else vLLM would take other shares and sizes than those that were found to fit."""
    made = folder(tmp_path / "My model", "Llama-3.1-8B")
    words = {
        "--dtype": "float32",
        "--kv-cache-dtype": "fp8",
        "--mamba-ssm-cache-dtype": "float32",
        "--gpu-memory-utilization": "0.97",
        "--max-num-batched-tokens": "2048",
    }
    asked = [word for pair in words.items() for word in pair]
    code, out, _ = fit(made, "--card", "h100", "--cards", "8", *asked)
    (line,) = [line for line in out.splitlines() if line.startswith("start ")]
    started = shlex.split(line)
    assert code == 0 and str(made) in started
    assert words.items() <= dict(pairwise(started)).items()
    plain = fit(made, "--card", "h100", "--cards", "8")[1]
    assert "--gpu" not in next(line for line in plain.splitlines() if line.startswith("start "))


def test_a_context_beyond_the_models_is_counted_and_told(tmp_path: Path) -> None:
    made = folder(tmp_path / "M", "Llama-3.1-8B")
    code, out, _ = fit(made, "--card", "h100", "--cards", "8", "--context", "200000")
    assert code == 0 and "--max-model-len 200000" in out
    assert "max_position_embeddings is 131,072: vLLM takes more by rope scaling only" in out


def test_what_fits_nowhere_ends_with_1_and_says_by_how_much(tmp_path: Path) -> None:
    made = folder(tmp_path / "M", "DeepSeek-V3")
    code, out, _ = fit(made, "--card", "a100-80", "--cards", "8", "--nodes", "2")
    assert code == 1 and "start " not in out
    assert "1 node: does not fit" in out and "2 nodes: does not fit" in out
    assert "GiB too much for a card" in out and "there is no room for a cache" in out


def test_a_given_split_is_checked_and_not_replaced(tmp_path: Path) -> None:
    made = folder(tmp_path / "M", "Llama-3.1-8B")
    size = ("--card", "h100", "--cards", "8")
    code, out, _ = fit(made, *size, "-tp", "2", "-pp", "2")
    assert code == 0 and "PP 2 x TP 2" in out and "fewest" not in out
    code, _, said = fit(made, *size, "-tp", "8", "-pp", "2")
    assert code == 1 and "does-not-fit: PP 2 x TP 8: needs 16 cards, and there are 8" in said
    code, _, said = fit(made, *size, "-pp", "33")
    assert code == 2 and "32 layers cannot be spread over 33 stages" in said


def document(*words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fit(*words, "--json")[1])
    return found


def test_the_document(tmp_path: Path) -> None:
    made = folder(tmp_path / "M", "Qwen3-235B-A22B")
    told = document(made, "--card-memory", "80", "--cards", "8", "--nodes", "2", "--overhead", "3")
    assert (told["exit"], told["fits"], told["context"]) == (0, True, 40960)
    assert told["model"]["parameters"] == model("Qwen3-235B-A22B").parameters
    assert told["plan"]["tensor_parallel_size"] * told["plan"]["pipeline_parallel_size"] <= 16
    assert [one["nodes"] for one in told["failed"]] == list(range(1, told["plan"]["nodes"]))
    half = document(made, "--card-memory", "80", "--cards", "8", "--kv-cache-dtype", "fp8")
    assert half["kv_cache_dtype"] == "fp8"
    for key in ("fits", "plan", "failed", "better", "fewest_cards", "assumptions"):
        assert key in told


WRONG = {
    "an architecture": ({"model_type": "t5"}, (), "model_type t5 is not"),
    "a wrapper": ({"model_type": "llama4"}, (), "known: deepseek_v2, deepseek_v3, ernie4_5_moe"),
    "a missing key": ({"hidden_size": None}, (), "has no usable hidden_size"),
    "a quantisation": (
        {"quantization_config": {"quant_method": "quip"}},
        (),
        "how quip packs this model's weights is not known",
    ),
    "a dtype": ({"torch_dtype": "int3"}, (), "dtype int3 is not known"),
    "a share": ({}, ("--gpu-memory-utilization", "92"), "'92' is not between 0 and 1"),
    "a number": ({}, ("--concurrency", "0"), "'0' is no whole number from 1 on"),
    "two sizes": ({}, ("--card-memory", "80"), "not allowed with argument --card"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_known_is_refused(tmp_path: Path, case: str) -> None:
    more, words, what = WRONG[case]
    made = folder(tmp_path / "M", "Llama-3.1-8B", **more)
    code, out, said = fit(made, "--card", "h100", "--cards", "8", *words)
    assert (code, out) == (2, "") and what in said


ODD = [None, "x", -1, 0, 1.5, True, [], {}, [None], {"weights": 3}, 10**30, 5000]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(fit_models.CONFIGS)), st.sampled_from(ODD), st.data())
def test_whatever_a_config_says_is_sized_or_refused(
    name: str, value: Any, data: st.DataObject
) -> None:
    keys = [*fit_models.CONFIGS[name], "quantization_config", "layer_types", "tie_word_embeddings"]
    key = data.draw(st.sampled_from(keys))
    try:
        made = reading.describe(name, fit_models.CONFIGS[name] | {key: value})
        planning.propose(made, Place(H100, 8, 2), Demand(made.longest, 1, 2))
    except FixesError as error:
        assert error.exit_code == 2


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_a_file_that_is_nested_too_deep_is_told(tmp_path: Path, file: str) -> None:
    made = folder(tmp_path / "M", "Llama-3.1-8B")
    (made / file).write_text("[" * 200_000)
    code, out, said = fit(made, "--card", "h100", "--cards", "8")
    assert (code, out) == (2, "") and "bad-model" in said and file in said


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"])
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    made = folder(tmp_path / "M", "Llama-3.1-8B")
    (made / "model.safetensors").write_bytes(content)
    code, out, said = fit(made, "--card", "h100", "--cards", "8")
    assert (code, out) == (2, "") and "bad-model" in said and "model.safetensors is no" in said


def test_a_model_is_found_by_folder_config_or_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub/models--you--small/snapshots/abc"
    snapshot.mkdir(parents=True)
    folder(snapshot, "Llama-3.1-8B")
    refs = tmp_path / "hub/models--you--small/refs"
    refs.mkdir()
    (refs / "main").write_text("abc", "ascii")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert reading.find("you/small") == reading.find(str(snapshot / "config.json")) == snapshot
    for name in ("you/other", str(tmp_path)):
        with pytest.raises(FixesError, match="bad-model"):
            reading.find(name)


def test_cards_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / f"dev/nvidia{number}").touch()
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 81559\necho 81559\n", "utf-8")
    environ = {"PATH": str(tool.parent)}
    assert cards.here(environ, tmp_path) == (None, 2)  # it cannot be run
    tool.chmod(0o755)
    card, number = cards.here(environ, tmp_path)
    assert card and (number, card.memory, card.left) == (2, 81559 * 2**20, False)
    assert cards.here({"PATH": ""}, tmp_path / "dev") == (None, 0)
