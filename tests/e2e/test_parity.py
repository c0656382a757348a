"""`parity` between real engines: two nodes against one, and candidates that are not the same."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cache
import pytest

from . import lab, models, results, scenarios
from .cases import ACCEPTED, BF16, NGRAM
from .conftest import CHECKOUT, Record
from .server import PORT, STAGES, Replica, Server, replica

pytestmark = [pytest.mark.e2e, pytest.mark.full]
# Little of everything: what is shown is that each part works against an engine.
LITTLE = (
    *("--greedy", "3", "--answer-tokens", "16", "--at-once", "3", "--positions", "600"),
    *("--needles", "700", "--depths", "0.5", "--streams", "1,2", "--prefix", "256"),
    *("--new-tokens", "16", "--repeats", "2", "--timeout", "120"),
)
# Drafts are taken from what was said before: answers have to be long enough to repeat themselves.
ANSWERS = (
    *("--greedy", "8", "--answer-tokens", "24", "--at-once", "4", "--positions", "0"),
    *("--needles", "none", "--streams", "none", "--timeout", "120"),
)
DRAFTING = ("--speculative-config", NGRAM)
# Text that repeats itself from its beginning, so that something is drafted.
REPEATING = (
    *("--greedy", "4", "--answer-tokens", "16", "--at-once", "4", "--positions", "300"),
    *("--needles", "none", "--streams", "none", "--timeout", "120"),
)
ONLY_NEEDLES = ("--greedy", "0", "--at-once", "0", "--positions", "0", "--streams", "none")
# What the documents tell of, but for lengths that a small model on a CPU takes too long for.
WHOLE = (
    *("--answer-tokens", "16", "--needles", "2048", "--prefix", "512", "--new-tokens", "16"),
    *("--repeats", "1", "--timeout", "300"),
)
SCALE = """
import json, sys
from safetensors import safe_open
from safetensors.torch import save_file

file = sys.argv[1]
with safe_open(file, "pt") as stream:
    tensors = {name: stream.get_tensor(name) for name in stream.keys()}
tensors["model.layers.12.mlp.down_proj.weight"] *= 1.01
save_file(tensors, file, {"format": "pt"})
"""

Baseline = Callable[..., contextlib.AbstractContextManager[Server]]


@dataclass
class Run:
    """One run of `parity` beside the servers."""

    arguments: tuple[str, ...]
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        launch = [sys.executable, CHECKOUT / "fixes/apply_all.py", "parity", "--json"]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", lab.LEADER.name, *launch, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self, *codes: int) -> Any:
        """The report of a run that ends with one of these codes."""
        out, err = self.process.communicate(timeout=1800)
        assert self.process.returncode in codes, out[-3000:] + err
        document = json.loads(out)
        assert document["exit"] == self.process.returncode
        return document


def url(server: Server) -> str:
    return f"http://{server.host.address}:{PORT}"


def statuses(document: Any) -> dict[str, str]:
    return {name: part["status"] for name, part in document["parts"].items()}


@pytest.fixture(scope="module")
def baseline(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Baseline]:
    """The stock engine with one stage, where a replica has its headless node: the port is free."""

    @contextlib.contextmanager
    def serving(options: tuple[str, ...] = (), model: str = models.LLAMA) -> Iterator[Server]:
        log = tmp_path_factory.mktemp("baseline") / "server.log"
        with lab.lab(), Server(lab.WORKER, stock, options, log, model=model) as server:
            server.boot()
            yield server

    yield serving


@pytest.fixture(scope="class")
def pair(baseline: Baseline, fixed: Path, logs: Path) -> Iterator[tuple[Server, Replica]]:
    with baseline() as one, replica(fixed, logs) as two:
        yield one, two


class TestTwoNodes:
    def test_answer_as_one_does(
        self, pair: tuple[Server, Replica], record: Record, tmp_path: Path, release: str
    ) -> None:
        one, two = pair
        start = time.monotonic()
        page = tmp_path / "parity.html"
        document = Run((url(one), url(two.leader), *LITTLE, "--html", str(page))).ends(0)
        record("parity, one stage and two nodes", time.monotonic() - start)
        assert document["verdict"] == "identical"
        answered = ("greedy", "batching", "forced", "needles")
        assert [statuses(document)[part] for part in answered] == ["identical"] * 4
        rows = document["parts"]["forced"]["rows"]
        assert rows["candidate"]["positions"] == rows["control"]["positions"] == 600
        assert rows["candidate"]["agreeing"] == 600
        results.keep(release, "scenarios", "parity, two nodes", rows["candidate"]["nll"])
        differing = {line["name"] for line in document["preflight"] if line["equal"] is False}
        assert differing <= {"fingerprint", "caching"}
        assert document["parts"]["speed"]["rows"]["figures"]
        assert "<svg" in page.read_text("utf-8")

    def test_answer_as_one_does_in_the_whole_table(
        self, pair: tuple[Server, Replica], record: Record, tmp_path: Path, release: str
    ) -> None:
        one, two = pair
        start = time.monotonic()
        text = tmp_path / "parity.md"
        document = Run((url(one), url(two.leader), *WHOLE, "--markdown", str(text))).ends(0)
        record("parity, the whole table", time.monotonic() - start)
        print(text.read_text("utf-8"))
        assert document["verdict"] == "identical"
        row = document["parts"]["forced"]["rows"]["candidate"]
        assert row["positions"] == row["agreeing"] == 8400
        results.keep(release, "scenarios", "parity, the whole table", row["nll"])

    def test_that_end_in_the_middle_are_no_equal(self, pair: tuple[Server, Replica]) -> None:
        one, two = pair
        before = two.leader.text().count("/v1/completions")
        run = Run((url(one), url(two.leader), *LITTLE))
        with two.leader.explained():
            lab.until(lambda: two.leader.text().count("/v1/completions") > before + 20, 300)
        two.worker.kill()
        document = run.ends(3)
        assert document["verdict"] == "incomplete"
        (gone,) = [one for one in document["problems"] if one["code"] == 3]
        assert gone["kind"] == "unreachable" and gone["where"].startswith("candidate")


@dataclass(frozen=True)
class Other:
    """A candidate that is not the same: by its options, or by a weight that is scaled."""

    name: str
    options: tuple[str, ...] = ()
    scaled: bool = False


OTHERS = (
    Other("bfloat16", BF16),
    Other("one tensor scaled by 1.01", scaled=True),
)


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    """The model with one tensor that is not as it was."""
    folder = tmp_path / "scaled"
    shutil.copytree(cache.model(), folder)
    python = cache.venv("0.30.0") / "bin/python"
    subprocess.run([python, "-c", SCALE, folder / "model.safetensors"], check=True)
    return folder


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(one, marks=pytest.mark.full if number else (), id=one.name)
        for number, one in enumerate(OTHERS)
    ],
)
def test_another_engine_is_found(
    other: Other,
    baseline: Baseline,
    stock: Path,
    request: pytest.FixtureRequest,
    logs: Path,
    release: str,
) -> None:
    options = other.options
    if other.scaled:  # the last of an option counts
        options += ("--model", str(request.getfixturevalue("scaled")))
    with baseline() as one, Server(lab.LEADER, stock, options, logs / "server.log") as server:
        server.boot()
        document = Run((url(one), url(server), *LITTLE)).ends(1)
    assert document["verdict"] == "different"
    assert statuses(document)["forced"] == "different", document["reasons"]
    results.keep(release, "scenarios", f"parity, {other.name}", document["reasons"])


def test_drafts_change_no_token(
    baseline: Baseline,
    environment: Callable[..., Path],
    logs: Path,
) -> None:
    """Two stages with drafts answer as one does without; the preflight tells of the drafts."""
    fixed = environment("pp-intermediate-buffers", "pp-spec-drafter", "cpu-ngram")
    options = (*STAGES, *DRAFTING)
    with baseline() as one, Server(lab.LEADER, fixed, options, logs / "server.log") as server:
        server.boot()
        document = Run((url(one), url(server), *ANSWERS)).ends(0)
        assert server.counter(ACCEPTED)
    assert document["verdict"] == "identical"
    (line,) = [line for line in document["preflight"] if line["name"] == "speculation"]
    assert (line["baseline"], line["candidate"]) == ("off", "on")


def test_drafts_that_spoil_the_text_are_found(
    baseline: Baseline,
    environment: Callable[..., Path],
    logs: Path,
    release: str,
) -> None:
    """The answers differ and the forced texts do not: it is not the weights, and that is said."""
    prompts = logs / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in scenarios.REPEATING))
    asked = (*REPEATING, "--prompts", str(prompts))
    drafting, log = environment("cpu-ngram"), logs / "server.log"
    unseen = {"UNSEEN_DRAFTS": "1"}
    with (
        baseline() as one,
        Server(lab.LEADER, drafting, DRAFTING, log, variables=unseen) as server,
    ):
        server.boot()
        document = Run((url(one), url(server), *asked)).ends(1)
    results.keep(release, "scenarios", "parity, drafts accepted unseen", document["reasons"])
    assert document["verdict"] == "different"
    found = statuses(document)
    assert [found[part] for part in ("greedy", "forced")] == ["different", "identical"]
    (hint,) = (note for note in document["notes"] if "weights" in note)
    assert "look at its drafts" in hint


def test_drafts_that_stop_the_engine_are_no_answer(
    baseline: Baseline, stock: Path, logs: Path, release: str
) -> None:
    """Two stock stages with drafts are healthy, and stuck from their first request on."""
    options = (*STAGES, *DRAFTING)
    with baseline() as one, Server(lab.LEADER, stock, options, logs / "server.log") as server:
        server.boot()
        document = Run((url(one), url(server), *LITTLE, "--timeout", "30")).ends(3)
        assert "object has no attribute 'drafter'" in server.text()
    (problem,) = document["problems"]
    assert problem["kind"] == "unreachable" and "stalled: silent for 30 s" in problem["what"]
    results.keep(release, "scenarios", "parity, stuck drafts", document["problems"])


@pytest.mark.parametrize("other", ["0.32.0"])
def test_another_release_is_told_or_refused(
    other: str, baseline: Baseline, logs: Path, tmp_path: Path, release: str
) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text('[preflight]\nmust_equal = ["tokenizer", "version"]\n')
    log = logs / "server.log"
    with baseline() as one, Server(lab.LEADER, cache.venv(other), (), log) as server:
        server.boot()
        refused = Run((url(one), url(server), *LITTLE, "--thresholds", str(strict))).ends(5)
        document = Run((url(one), url(server), *LITTLE)).ends(0)
    assert [problem["where"] for problem in refused["problems"]] == ["version"]
    first = document["preflight"][0]
    assert first["name"] == "version" and first["equal"] is False
    assert document["verdict"] == "identical"
    results.keep(release, "scenarios", f"parity, {other}", document["verdict"])


def test_needles_are_found_across_two_nodes(
    baseline: Baseline, fixed: Path, logs: Path, record: Record, release: str
) -> None:
    """In as many tokens as the documents tell of, by a model that copies, a layer on each node."""
    longer = ("--max-model-len", "13312")
    options = (*STAGES, *longer)
    with (
        baseline(longer, models.COPYING) as one,
        replica(fixed, logs, options=options, model=models.COPYING) as two,
    ):
        start = time.monotonic()
        document = Run((url(one), url(two.leader), *ONLY_NEEDLES, "--timeout", "300")).ends(0)
        record("parity, needles", time.monotonic() - start)
    rows = document["parts"]["needles"]["rows"]["candidate"]
    results.keep(release, "scenarios", "parity, needles", rows)
    assert statuses(document)["needles"] == "identical"
    three = {"baseline": 3, "candidate": 3, "control": 3}
    assert [(row["tokens"], row["found"]) for row in rows] == [
        (2048, three),
        (6144, three),
        (12288, three),
    ]
