"""`parity` against servers on real sockets: good ones, other ones, and ones that misbehave."""

from __future__ import annotations

import contextlib
import html.parser
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from parity_runs import LITTLE, PARTS, WHOLE, Run, kinds, on, runs, statuses
from release import launch
from scripted import Body, Model, Script, Scripted, servers

from fixes import cli
from fixes.commands import parity
from fixes.parity import facts

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runs(capsys)


# What is the same, and what is not


def test_two_servers_that_are_the_same(run: Run) -> None:
    with servers(Scripted(), Scripted()) as (one, two):
        document = run(one.url, two.url + "/v1/")
    assert document["exit"] == 0 and document["verdict"] == "identical"
    assert statuses(document) == WHOLE
    assert document["noise"] == {"logprob": 0.0, "at_once": 0.0}
    forced = document["parts"]["forced"]["rows"]
    for leg in ("candidate", "control"):
        assert forced[leg]["positions"] == forced[leg]["agreeing"] == 300
        assert forced[leg]["nll"][0] == forced[leg]["nll"][1]
        for row in document["parts"]["greedy"]["rows"][leg]:
            assert len(row["pairs"]) == 3 and row["state"] in ("cold", "warm")
    (needles,) = document["parts"]["needles"]["rows"]["candidate"]
    assert not needles["lost"] and not needles["gained"] and not needles["unsteady"]
    assert needles["found"] == {"baseline": 2, "candidate": 2, "control": 2}
    figures = document["parts"]["speed"]["rows"]["figures"]
    assert {(one["streams"], one["leg"]) for one in figures} == {
        (streams, leg) for streams in (1, 2) for leg in ("baseline", "candidate", "control")
    }


def test_one_server_alone_has_its_figures_and_its_control(run: Run) -> None:
    with Scripted() as one:
        document = run(one.url)
    assert document["exit"] == 0 and document["verdict"] == "measured"
    assert set(statuses(document).values()) == {"measured"}
    assert document["parts"]["forced"]["rows"]["control"]["positions"] == 300


def test_questions_go_to_the_legs_by_turns_and_are_the_same_for_all(run: Run) -> None:
    order: list[tuple[str, str]] = []

    def noting(name: str) -> Script:
        def script(number: int, path: str, body: Body) -> None:
            if body.get("logprobs") and body.get("ignore_eos") and "cache_salt" in body:
                order.append((name, body["cache_salt"]))

        return script

    with servers(Scripted(script=noting("a")), Scripted(script=noting("b"))) as (one, two):
        run(one.url, two.url, "--at-once", 0, "--needles", "none", "--streams", "none")
        asked = [body for body in one.posted() if body.get("max_tokens") == 8]
        told = [body for body in two.posted() if body.get("max_tokens") == 8]
    legs = [name for name, _ in order[2:-2]]  # without what is asked to know the servers
    assert "".join(legs) == "aabbaa" + "bbaaaa" + "aaaabb"  # each leg cold and warm
    salts = [salt for name, salt in order[2:-2]]
    assert all(salts[n] == salts[n + 1] for n in range(0, len(salts), 2))
    assert len(set(salts)) == len(salts) // 2  # nobody is warm before
    for body in (*asked, *told):
        assert body["temperature"] == 0 and body["repetition_penalty"] == 1.0
        body.pop("cache_salt", None)
    assert {json.dumps(body) for body in asked} == {json.dumps(body) for body in told}


DIFFERENT: dict[str, tuple[Scripted, set[str]]] = {
    "another model": (Scripted(model=Model(seed=1)), {"greedy", "batching", "forced", "needles"}),
    "log-probabilities that are off by a thousandth": (
        Scripted(model=Model(scale=1.001)),
        {"forced"},
    ),
    "one token in five is another": (
        Scripted(model=Model(twist=5)),
        {"greedy", "batching", "needles"},
    ),
    "needles are lost": (Scripted(model=Model(forgets=True)), {"needles"}),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_found_in_its_parts(run: Run, case: str) -> None:
    candidate, parts = DIFFERENT[case]
    with servers(Scripted(), candidate) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1 and document["verdict"] == "different"
    assert {name for name, one in statuses(document).items() if one == "different"} == parts
    assert {problem["where"] for problem in document["problems"]} == parts
    if "greedy" in parts:
        row = document["parts"]["greedy"]["rows"]["candidate"][0]
        found = row["pairs"][0]["divergence"]
        assert found["tokens"][0] != found["tokens"][1]
        assert found["gaps"][0] > 0 and found["probabilities"][0] < 0
        control = document["parts"]["greedy"]["rows"]["control"][0]
        assert all(pair["divergence"] is None for pair in control["pairs"])
    hints = [note for note in document["notes"] if "speaks for the same weights" in note]
    assert len(hints) == ("greedy" in parts and "forced" not in parts)


def test_servers_that_waver_are_not_called_identical(run: Run) -> None:
    """Leads are small and shaken by more than they are: A parts from A as B does."""
    model = Model(jitter=0.02, lead=0.0)
    with servers(Scripted(model=model), Scripted(model=model)) as (one, two):
        document = run(one.url, two.url, "--answer-tokens", 60, "--greedy", 6, "--needles", "none")
    assert document["noise"]["logprob"] > 0.01
    assert document["verdict"] != "identical"
    assert statuses(document)["greedy"] == "within-noise"
    likeness = {
        pair["divergence"]["likeness"]
        for row in document["parts"]["greedy"]["rows"]["candidate"]
        for pair in row["pairs"]
        if pair["divergence"]
    }
    assert likeness == {"within-noise"}


def test_speed_is_judged_by_thresholds_alone(run: Run, tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("[speed]\nmin_decode_ratio = 0.5\n")
    only = ("--greedy", 0, "--at-once", 0, "--positions", 0, "--needles", "none", "--streams", 1)
    with servers(Scripted(rate=400), Scripted(rate=100)) as (one, two):
        document = run(one.url, two.url, *only)
        assert document["exit"] == 0 and document["verdict"] == "measured"
        assert statuses(document)["greedy"] == "not-asked"
        document = run(one.url, two.url, *only, "--thresholds", limits)
    assert document["exit"] == 1 and statuses(document)["speed"] == "different"
    (ratio,) = document["parts"]["speed"]["rows"]["ratios"]["candidate"]
    assert 0.15 < ratio["decode"]["median"] < 0.4


# Preflight


def test_differences_are_shown_first(run: Run) -> None:
    digest = "ab" * 32
    other = Scripted(name="other", version="0.32.0", context=1024, fingerprint=f"sha256:{digest}")
    with servers(Scripted(), other) as (one, two):
        document = run(one.url, two.url)
    lines = document["preflight"]
    differing = [line["name"] for line in lines if line["equal"] is False]
    assert differing == [line["name"] for line in lines][: len(differing)]
    assert set(differing) == {"model", "context", "version", "fingerprint"}
    assert document["endpoints"]["candidate"]["digest"] == digest
    assert document["verdict"] == "identical"  # none of them is an answer


def test_metrics_tell_of_drafts_and_of_the_prefix_cache(run: Run, tmp_path: Path) -> None:
    """As vLLM 0.30.0 writes them."""
    cache = 'vllm:cache_config_info{block_size="128",enable_prefix_caching="%s",engine="0"} 1.0\n'
    drafts = 'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="small"} 0.0\n'
    other = Scripted(metrics=cache % "False" + drafts)
    strict = tmp_path / "strict.toml"
    strict.write_text('[preflight]\nmust_equal = ["speculation"]\n')
    with servers(Scripted(metrics=cache % "True"), other) as (one, two):
        document = run(one.url, two.url)
        assert run(one.url, two.url, "--thresholds", strict)["exit"] == 5
    told = {line["name"]: (line["baseline"], line["candidate"]) for line in document["preflight"]}
    assert told["speculation"] == ("off", "on") and told["caching"] == ("on", "off")
    assert document["notes"] == ["candidate: has no prefix cache, so nothing is warm"]
    assert document["verdict"] == "identical"


def test_drafts_are_named_where_answers_differ_and_texts_do_not(run: Run) -> None:
    drafts = 'vllm:spec_decode_num_draft_tokens_total{engine="0"} 5.0\n'
    with servers(Scripted(), Scripted(metrics=drafts, model=Model(twist=5))) as (one, two):
        document = run(one.url, two.url)
    assert document["verdict"] == "different" and statuses(document)["forced"] == "identical"
    (hint,) = (note for note in document["notes"] if "weights" in note)
    assert "look at its drafts" in hint


def test_another_tokenizer_is_refused(run: Run, tmp_path: Path) -> None:
    with servers(Scripted(), Scripted(vocabulary=1)) as (one, two):
        document = run(one.url, two.url)
        assert document["exit"] == 5
        assert [problem["kind"] for problem in document["problems"]] == ["preflight"]
        assert not two.posted("/v1/completions")[-1].get("stream")
        strict = tmp_path / "strict.toml"
        strict.write_text('[preflight]\nmust_equal = ["version", "defaults"]\n')
        other = Scripted(version="0.32.0", model=Model(seed=1))
        with other:
            document = run(one.url, other.url, "--thresholds", strict)
    assert [problem["where"] for problem in document["problems"]] == ["version", "defaults"]


def test_endpoints_that_are_not_there_are_all_named(run: Run) -> None:
    with servers(Scripted(), Scripted()) as (one, two):
        urls = (one.url, two.url)
    document = run(*urls)
    assert document["exit"] == 3
    assert [problem["where"] for problem in document["problems"]] == list(urls)


def on_first(*actions: str | int) -> Script:
    """What becomes of the first questions; later ones meet the last of these."""
    left = list(actions)

    def script(number: int, path: str, body: Body) -> str | int | None:
        if path != "/v1/completions":
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return script


def test_an_endpoint_that_is_up_but_gives_no_token_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_PAUSE", 0.01)
    with servers(Scripted(), Scripted(script=on_first(500))) as (one, two):
        document = run(one.url, two.url)
        assert len(two.posted()) == 3
    assert document["exit"] == 5
    assert "server-error" in document["problems"][0]["what"]


STUCK: dict[str, tuple[tuple[str | int, ...], str]] = {
    "stuck": (("stall",), "does not answer; stalled: silent for 0.3 s"),
    "closes": (("close",), "does not answer; cut-short"),
    "fails, then ends": ((500, "die"), "ended after its first question (server-error: HTTP 500"),
}


@pytest.mark.parametrize("case", STUCK)
def test_an_engine_that_ends_at_its_first_question_is_not_there(
    run: Run, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two stock stages do; /health, which says 200 all the time, is not asked."""
    monkeypatch.setattr(facts, "_PAUSE", 0.01)
    actions, what = STUCK[case]
    with servers(Scripted(), Scripted(script=on_first(*actions))) as (one, two):
        document = run(one.url, two.url, "--timeout", 0.3)
    (problem,) = document["problems"]
    assert document["exit"] == 3 and problem["kind"] == "unreachable"
    assert what in problem["what"] and problem["where"] == two.url
    assert "vllm-fixes explain LOGFILE" in problem["hint"]


def test_a_model_that_is_not_served(run: Run) -> None:
    with servers(Scripted(), Scripted(name="other")) as (one, two):
        document = run(one.url, two.url, "--candidate-model", "othr")
        assert document["exit"] == 2 and "other" in document["problems"][0]["hint"]
        assert run(one.url, two.url, "--model", "small", "--candidate-model", "other")["exit"] == 0


# Misbehaviour


FAULTS: dict[str, tuple[str, str | int, str]] = {
    "429": ("greedy", 429, "too-many-requests"),
    "500": ("greedy", 500, "server-error"),
    "400": ("forced", 400, "refused"),
    "a connection that is closed": ("greedy", "close", "cut-short"),
    "half an answer": ("needles", "cut", "cut-short"),
    "silence": ("forced", "stall", "stalled"),
    "no JSON": ("batching", "garbage", "malformed"),
    "no choice": ("needles", "empty", "malformed"),
    "fewer tokens": ("greedy", "short", "ended-early"),
    "a stream that is cut": ("speed", "cut", "cut-short"),
    "a stream that is refused": ("speed", 429, "too-many-requests"),
    "a stream that fails": ("speed", 500, "server-error"),
    "a stream with an error": ("speed", "error-event", "server-error"),
    "a stream without an end": ("speed", "no-done", "cut-short"),
    "a stream that ends early": ("speed", "short", "ended-early"),
    "a stream that stalls": ("speed", "stall", "stalled"),
}


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.parametrize("leg", ["candidate", "baseline"])
def test_a_fault_is_named_and_the_rest_is_measured(run: Run, case: str, leg: str) -> None:
    part, action, kind = FAULTS[case]
    # 429 is tried again three times.
    script = on(part, action, count=8 if action == 429 and part != "speed" else 2)
    bad, good = Scripted(script=script), Scripted()
    pair = (good, bad) if leg == "candidate" else (bad, good)
    with servers(*pair) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1 and document["verdict"] == "incomplete"
    wanted = {**WHOLE, part: "incomplete"}
    assert statuses(document) == wanted
    told = kinds(document)
    assert told and {(name, what) for name, _, what in told} == {(part, kind)}
    legs = {"candidate"} if leg == "candidate" else {"baseline", "control"}
    assert {where for _, where, _ in told} <= legs
    assert kind in document["reasons"][-1]
    assert [problem["kind"] for problem in document["problems"]] == ["incomplete"]


@pytest.mark.parametrize("part", PARTS)
def test_an_engine_that_dies_is_no_equal(run: Run, part: str) -> None:
    with servers(Scripted(), Scripted(script=on(part, "die", first=1 + (part != "forced")))) as (
        one,
        two,
    ):
        document = run(one.url, two.url)
    assert document["exit"] == 3 and document["verdict"] == "incomplete"
    later = PARTS[PARTS.index(part) :]
    assert statuses(document) == {**WHOLE, **dict.fromkeys(later, "incomplete")}
    (gone,) = [problem for problem in document["problems"] if problem["code"] == 3]
    assert gone["kind"] == "unreachable" and gone["where"].startswith("candidate")
    assert {kind for name, _, kind in kinds(document) if name != part} <= {"gone"}


def test_a_baseline_that_dies_is_no_equal(run: Run) -> None:
    with servers(Scripted(script=on("greedy", "die", first=3)), Scripted()) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 3 and document["verdict"] == "incomplete"
    assert set(statuses(document).values()) == {"incomplete"}


def test_a_server_that_hangs_is_given_up(run: Run) -> None:
    with servers(Scripted(), Scripted(script=on("greedy", "stall"))) as (one, two):
        document = run(one.url, two.url, "--timeout", 0.3)
    assert document["exit"] == 3 and document["verdict"] == "incomplete"
    assert "3 times in a row" in document["problems"][0]["what"]


def test_too_many_requests_once_are_tried_again(run: Run) -> None:
    for action in (429, 503):
        with servers(Scripted(), Scripted(script=on("greedy", action, count=2))) as (one, two):
            document = run(one.url, two.url)
        assert document["verdict"] == "identical"
        assert "candidate: 2 requests were tried again after a 429 or 503" in document["notes"]


LACKS: dict[str, tuple[Scripted, set[str], str]] = {
    "prompt_logprobs": (Scripted(prompt_logprobs=False), set(), ""),
    "prompt_logprobs and echo": (
        Scripted(prompt_logprobs=False, echo=False),
        {"forced"},
        "lacks-prompt-logprobs",
    ),
    "return_token_ids": (Scripted(ids=False), set(), ""),
    "token ids of any kind": (
        Scripted(ids=False, id_names=False),
        {"greedy", "batching", "needles"},
        "lacks-token-ids",
    ),
    "cache_salt": (Scripted(salts=False), set(), ""),
    "/tokenize": (Scripted(tokenizes=False), set(), ""),
    "usage in each chunk": (Scripted(ids=False, usage="total"), set(), ""),
    "usage": (Scripted(ids=False, usage=""), {"speed"}, "lacks-token-counts"),
    "nothing, but sends comments": (Scripted(comments=True), set(), ""),
    "nothing, behind a path": (Scripted(prefix="/models/one"), set(), ""),
}


@pytest.mark.parametrize("case", LACKS)
def test_what_a_server_lacks_is_named(run: Run, case: str) -> None:
    candidate, parts, kind = LACKS[case]
    with servers(Scripted(), candidate) as (one, two):
        document = run(one.url, two.url)
    assert statuses(document) == {**WHOLE, **dict.fromkeys(parts, "incomplete")}
    assert kinds(document) == {(part, "candidate", kind) for part in parts}
    assert document["exit"] == (1 if parts else 0)
    if case == "cache_salt":
        assert any("cache_salt" in note for note in document["notes"])


def test_a_baseline_that_cannot_turn_text_into_tokens(run: Run) -> None:
    with servers(Scripted(ids=False, tokenizes=False), Scripted()) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1 and set(statuses(document).values()) == {"incomplete"}
    assert {kind for _, _, kind in kinds(document)} == {"lacks-token-ids"}


@pytest.mark.parametrize("usage", ["ids", "continuous", "total"])
def test_several_tokens_a_chunk_are_counted(run: Run, usage: str) -> None:
    """A stream of 400 tokens a second has that rate, whatever its chunks hold."""
    given = {"ids": True} if usage == "ids" else {"ids": False, "usage": usage}
    only = ("--greedy", 0, "--at-once", 0, "--positions", 0, "--needles", "none", "--streams", 1)
    with Scripted(rate=400, a_chunk=5, **given) as one:  # type: ignore[arg-type]
        document = run(one.url, *only, "--new-tokens", 200)
    figures = document["parts"]["speed"]["rows"]["figures"][0]
    assert figures["most_in_a_chunk"] == 5
    assert figures["counted"] == [{"continuous": "usage"}.get(usage, usage)]
    assert 300 < figures["decode"]["median"] < 420


# Keys, reports, words


def test_keys_are_sent_and_never_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(parity.KEY, "one-secret")
    monkeypatch.setenv(parity.CANDIDATE_KEY, "two-secret")
    page = tmp_path / "page.html"
    with servers(Scripted(), Scripted()) as (one, two):
        address = one.url.replace("http://", "http://somebody:password@")
        document = run(address, two.url, "--html", page)
        keys = [{headers["authorization"] for _, _, headers in each.seen} for each in (one, two)]
    assert keys == [{"Bearer one-secret"}, {"Bearer two-secret"}]
    for shown in (json.dumps(document), page.read_text("utf-8")):
        assert "secret" not in shown and "password" not in shown


class Page(html.parser.HTMLParser):
    """What a page would load, and what it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = {"src", "srcset", "data", "action", "poster", "href", "xlink:href"}
        self.loaded += [
            value or ""
            for name, value in attrs
            if name in names and not (value or "").startswith("#")
        ]


def test_reports_are_written_and_the_page_needs_nothing(run: Run, tmp_path: Path) -> None:
    page, text = tmp_path / "page.html", tmp_path / "report.md"
    with servers(Scripted(), Scripted(model=Model(seed=1))) as (one, two):
        document = run(one.url, two.url, "--html", page, "--markdown", text)
    told = page.read_text("utf-8")
    parser = Page()
    parser.feed(told)
    assert parser.loaded == [] and "@import" not in told and "script" not in parser.tags
    assert re.findall(r"url\((?!#)", told) == []
    plots = re.findall(r"<svg.*?</svg>", told, re.DOTALL)
    assert len(plots) == 3
    ids = [match for plot in plots for match in re.findall(r'<path id="(\w+)"', plot)]
    assert len(ids) == len(set(ids))
    for plot in plots:
        ElementTree.fromstring(plot)
    assert "verdict: different" in told and "verdict: different" in text.read_text("utf-8")
    nll = "{:.4f}".format(document["parts"]["forced"]["rows"]["candidate"]["nll"][1])
    assert nll in told and nll in text.read_text("utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "report.md"]


def test_the_report_is_text_without_json() -> None:
    with servers(Scripted(), Scripted()) as (one, two):
        done = launch(sys.executable, "parity", one.url, two.url, *LITTLE)
        quiet = launch(sys.executable, "parity", one.url, *LITTLE, "--quiet")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("# Parity") and "## Teacher-forced" in done.stdout
    assert quiet.stdout.startswith("verdict: measured (") and quiet.stdout.count("\n") == 1


def test_a_terminal_is_shown_how_far_it_is() -> None:
    ours, theirs = pty.openpty()
    with Scripted() as one:
        command = [sys.executable, CHECKOUT / "fixes/apply_all.py", "parity", one.url, *LITTLE]
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs
        ) as process:
            assert process.stdout
            out = process.stdout.read()
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(ours, 65536):
            shown += data
    os.close(ours)
    assert process.returncode == 0 and out.startswith(b"# Parity") and b"\x1b" not in out
    for part in PARTS:
        assert part.encode() in shown


def test_stopped_it_says_so_and_speaks_of_no_change() -> None:
    with Scripted(script=on_first("stall")) as one:
        command = [sys.executable, CHECKOUT / "fixes/apply_all.py", "parity", one.url]
        for number, word in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")):
            before = len(one.posted())
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
                while len(one.posted()) == before:
                    time.sleep(0.02)
                process.send_signal(number)
                _, err = process.communicate(timeout=20)
            assert process.returncode == 128 + number
            assert err == f"{word}: ended before it was done\n"


def test_errors_at_once_do_not_end_the_run(run: Run) -> None:
    """All of a batch fail, and what comes later is measured."""
    with servers(Scripted(), Scripted(script=on("batching", 500))) as (one, two):
        document = run(one.url, two.url, "--at-once", 8, "--greedy", 8)
    assert statuses(document) == {**WHOLE, "batching": "incomplete"}
    (fault,) = document["faults"]
    assert len(fault["questions"]) == 8 and document["exit"] == 1


def test_a_report_that_cannot_be_written_is_not_asked_for(run: Run, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with Scripted() as one:
        assert run(one.url, "--html", tmp_path / "none/page.html")["exit"] == 2
        assert run(one.url, "--html", tmp_path / "page.html")["exit"] == 2
        assert one.seen == []
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_prompts_of_ones_own(run: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "own.jsonl"
    prompts.write_text('{"prompt": "my own question"}\n')
    with Scripted() as one:
        document = run(one.url, "--prompts", prompts)
        asked = [body["prompt"] for body in one.posted("/tokenize")]
    assert "my own question" in asked and document["parts"]["greedy"]["asked"] == 1


WRONG = {
    "no server": ((), "required: BASELINE"),
    "no URL": (("host:8000",), "is no URL of a server"),
    "another scheme": (("ftp://host/",), "is no URL of a server"),
    "no number": (("http://h", "--greedy", "many"), "no number from 0"),
    "a number below": (("http://h", "--new-tokens", "0"), "no number from 1"),
    "a list": (("http://h", "--streams", "1,x"), "no number from 1"),
    "a depth": (("http://h", "--depths", "2"), "no number from 0.0 to 1.0"),
    "a model of nobody": (("http://h", "--candidate-model", "x"), "there is no CANDIDATE"),
    "no prompts": (("http://h", "--prompts", "/nowhere"), "bad-prompts"),
    "no thresholds": (("http://h", "--thresholds", "/nowhere"), "bad-thresholds"),
}


@pytest.mark.parametrize("case", WRONG)
def test_words_that_are_wrong(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, what = WRONG[case]
    assert cli.main(["parity", *arguments]) == 2
    assert what in capsys.readouterr().err


def test_without_its_packages_it_says_what_it_needs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "find_spec", lambda name: None if name == "httpx" else True)
    document = run("http://127.0.0.1:9")
    (problem,) = document["problems"]
    assert document["exit"] == 2 and problem["what"] == "needs the package httpx"
    assert "pip install '.[parity]'" in problem["hint"]
