"""`parity` against servers and options that give reasons to doubt: nothing unknown is equal."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from parity_runs import LITTLE, PARTS, WHOLE, Run, kinds, on, runs, statuses
from release import launch
from scripted import Alter, Body, Model, Scripted, servers

from fixes import cli
from fixes.commands import parity
from fixes.parity import client

SPEED = ("--greedy", 0, "--at-once", 0, "--positions", 0, "--needles", "none")
EVIL = "</td><script>alert(1)</script>|x\n# h\x1b[31m [a](javascript:x) `b` \ud800"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runs(capsys)


def answers(body: Body) -> bool:
    """Whether a greedy answer is asked for, and not by the preflight."""
    return bool(body.get("logprobs")) and body["max_tokens"] == 8 and not body.get("stream")


# What is not known


def test_logprobs_that_are_no_numbers_are_never_equal(run: Run) -> None:
    """An engine that computes NaN gives token 0 at each place, on both servers."""

    def broken(path: str, body: Body, document: Any) -> Any:
        if path == "/v1/completions" and answers(body):
            told = document["choices"][0]["logprobs"]
            told["top_logprobs"] = [
                dict.fromkeys(top, float("nan")) for top in told["top_logprobs"]
            ]
        return document

    with servers(Scripted(alter=broken), Scripted(alter=broken)) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1
    assert statuses(document) == {**WHOLE, "greedy": "incomplete", "batching": "incomplete"}
    assert {kind for _, _, kind in kinds(document)} == {"lacks-logprobs"}


FORMS: dict[str, tuple[Any, str]] = {
    "a choice that is a number": ({"choices": [7]}, "malformed"),
    "usage that is a list": ({"choices": [{"text": "a"}], "usage": [1]}, "malformed"),
    "logprobs that are a text": (
        {"choices": [{"token_ids": [1] * 8, "logprobs": "x"}]},
        "malformed",
    ),
    "a list": ([1], "malformed"),
    "an error with status 200": ({"error": {"message": "out of memory"}}, "server-error"),
}


@pytest.mark.parametrize("case", FORMS)
def test_an_answer_of_another_form_is_a_fault_of_the_server(run: Run, case: str) -> None:
    form, kind = FORMS[case]

    def odd(path: str, body: Body, document: Any) -> Any:
        return form if path == "/v1/completions" and answers(body) else document

    with servers(Scripted(), Scripted(alter=odd)) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1
    assert statuses(document) == {**WHOLE, "greedy": "incomplete", "batching": "incomplete"}
    assert {kind for _, _, kind in kinds(document)} == {kind}


EVENTS = {
    "usage as text": {"usage": {"completion_tokens": "8"}},
    "more tokens than were asked for": {"usage": {"completion_tokens": 800}},
    "choices as text": {"choices": "x"},
}


@pytest.mark.parametrize("case", EVENTS)
def test_a_stream_of_another_form_has_no_rate(run: Run, case: str) -> None:
    def odd(path: str, body: Body, document: Any) -> Any:
        return {**document, **EVENTS[case]} if body.get("stream") else document

    with servers(Scripted(), Scripted(ids=False, alter=odd)) as (one, two):
        document = run(one.url, two.url, *SPEED)
    assert document["exit"] == 1 and kinds(document) == {("speed", "candidate", "malformed")}


def test_a_stream_that_is_packed_is_read(run: Run) -> None:
    def script(number: int, path: str, body: Body) -> str | None:
        return "packed" if body.get("stream") else None

    with Scripted(script=script) as one:
        document = run(one.url, *SPEED)
    assert statuses(document)["speed"] == "measured"


def test_a_baseline_that_is_another_model_now_and_then(run: Run) -> None:
    """The candidate is as the baseline was the first time; only the control tells."""
    other = Scripted(model=Model(seed=5))  # lends its answers

    def wavering(path: str, body: Body, document: Any) -> Any:
        if body.get("cache_salt", "").endswith("control"):
            return other._document(path, body, None)[1]
        return document

    with servers(Scripted(alter=wavering), Scripted(), other) as (one, two, _):
        document = run(one.url, two.url, "--positions", 0, "--needles", "none")
    assert document["exit"] == 1 and document["verdict"] == "incomplete"
    assert "differs from itself" in document["reasons"][0]


def test_what_must_be_equal_and_is_not_told_is_not_equal(run: Run, tmp_path: Path) -> None:
    with servers(Scripted(), Scripted(ids=False, tokenizes=False)) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1 and document["verdict"] == "incomplete"
    assert document["problems"][0]["where"] == "preflight"
    assert "tokenizer must be equal" in document["reasons"][0]
    strict = tmp_path / "strict.toml"
    strict.write_text('[preflight]\nmust_equal = ["digest"]\n')
    with servers(Scripted(), Scripted()) as (one, two):
        document = run(one.url, two.url, "--thresholds", strict)
        assert document["exit"] == 1 and "digest must be equal" in document["reasons"][0]
        assert run(one.url, "--thresholds", strict)["exit"] == 0  # with nothing to equal


def test_a_server_that_is_replaced_meanwhile_is_not_equal(run: Run) -> None:
    candidate = Scripted()

    def replaced(path: str, body: Body, document: Any) -> Any:
        if body.get("stream"):
            candidate.version, candidate.fingerprint = "0.32.0", "another"
        return document

    candidate.alter = replaced
    with servers(Scripted(), candidate) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1 and statuses(document) == WHOLE
    assert document["verdict"] == "incomplete"
    assert "version was 0.30.0+cpu at the start and is 0.32.0 at the end" in document["reasons"][0]


def test_another_model_behind_the_same_name_is_found_late(run: Run) -> None:
    """It is swapped after the forced texts, and tells the codes as the first one did."""
    candidate = Scripted()

    def swapped(path: str, body: Body, document: Any) -> Any:
        if body.get("prompt_logprobs") and len(body["prompt"]) > 30:
            candidate.model = Model(seed=9)
        return document

    candidate.alter = swapped
    with servers(Scripted(), candidate) as (one, two):
        document = run(one.url, two.url)
    assert document["exit"] == 1 and statuses(document) == {**WHOLE, "needles": "different"}
    assert "2 of 2 answers part beyond the noise" in document["reasons"][0]
    (row,) = document["parts"]["needles"]["rows"]["candidate"]
    assert row["found"] == {"baseline": 2, "candidate": 2, "control": 2}


def test_one_server_is_not_compared_with_itself(run: Run) -> None:
    with Scripted() as one:
        document = run(one.url, one.url + "/v1/")
    assert document["exit"] == 2 and "compared with itself" in document["problems"][0]["what"]


def test_what_was_asked_for_and_does_not_fit_is_not_measured(run: Run) -> None:
    with servers(Scripted(context=120), Scripted(context=120)) as (one, two):
        document = run(one.url, two.url)
        assert document["exit"] == 1 and statuses(document) == {**WHOLE, "needles": "incomplete"}
    with servers(Scripted(), Scripted()) as (one, two):
        document = run(one.url, two.url, "--needles", "5,500")
        lengths = {len(body["prompt"]) for body in one.posted() if body.get("max_tokens") == 24}
    assert lengths == {500} and statuses(document)["needles"] == "incomplete"
    assert "needles: 5 tokens do not hold one and its question" in document["notes"]


@pytest.mark.parametrize("context", [1, -5, "long"])
def test_a_context_that_is_none_is_refused(run: Run, context: Any) -> None:
    with Scripted(context=context) as one:
        document = run(one.url)
    assert document["exit"] == 5 and repr(context) in document["problems"][0]["what"]


def test_answers_that_end_by_themselves_are_told(run: Run) -> None:
    def stops(path: str, body: Body, document: Any) -> Any:
        if path == "/v1/completions" and answers(body):
            (choice,) = document["choices"]
            choice["token_ids"], choice["finish_reason"] = choice["token_ids"][:2], "stop"
            told = choice["logprobs"]
            choice["logprobs"] = {name: values[:2] for name, values in told.items()}
        return document

    with servers(Scripted(alter=stops), Scripted(alter=stops, context=0)) as (one, two):
        document = run(one.url, two.url)
    assert (
        "greedy: answers of the baseline have 2 tokens at least, not the 8 asked for"
        in (document["notes"])
    )
    assert "a context is not told: 2048 tokens are taken for it" in document["notes"]


# What is timed


def test_streams_take_turns_and_the_first_ones_are_thrown_away(run: Run) -> None:
    order: list[str] = []

    def noting(name: str) -> Alter:
        def alter(path: str, body: Body, document: Any) -> Any:
            if body.get("stream"):
                if document["usage"]["completion_tokens"] == 1:
                    order.append(name)
                time.sleep(0.05 if len(order) <= 3 else 0)
            return document

        return alter

    one, two = Scripted(alter=noting("a")), Scripted(alter=noting("b"))
    with servers(one, two):
        document = run(one.url, two.url, *SPEED, "--streams", 1, "--repeats", 3)
    assert "".join(order) == "aba" + "baa" + "aab" + "aba"  # the control is a as well
    for figures in document["parts"]["speed"]["rows"]["figures"]:
        assert figures["repeats"] == 3
        assert figures["decode"]["least"] > 20  # as no stream of the first round could be


# What does not end


@pytest.mark.parametrize("part", ["greedy", "speed"])
@pytest.mark.parametrize("action, kind", [("flood", "malformed"), ("trickle", "stalled")])
def test_an_answer_without_end_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch, part: str, action: str, kind: str
) -> None:
    monkeypatch.setattr(client, "LARGEST", 3_000_000)
    monkeypatch.setattr(client, "SILENCES_IN_ALL", 1)
    few = ("--answer-tokens", 1, "--new-tokens", 1)
    script = on(part, action, count=1)
    with servers(Scripted(), Scripted(script=script)) as (one, two):
        began = time.monotonic()
        document = run(one.url, two.url, *few)
    assert time.monotonic() - began < 60
    assert kinds(document) == {(part, "candidate", kind)} and document["exit"] == 1


# What others wrote


def test_names_of_a_server_are_no_markup(run: Run, tmp_path: Path) -> None:
    page, text = tmp_path / "page.html", tmp_path / "report.md"
    with servers(Scripted(), Scripted(version=EVIL, fingerprint=EVIL)) as (one, two):
        document = run(one.url, two.url, "--html", page, "--markdown", text)
    assert document["endpoints"]["candidate"]["version"] == EVIL
    assert "<script" not in page.read_text("utf-8")
    told = text.read_text("utf-8")
    assert "\x1b" not in told and "\n# h" not in told
    assert r"\<script\>" in told and r"\|x\\n# h\\x1b" in told and r"\[a\](java" in told


def test_names_of_models_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Scripted(name=EVIL) as one:
        assert cli.main(["parity", one.url, "--model", "other", *LITTLE]) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and r"\x1b[31m" in shown


# Secrets


def test_a_key_that_a_server_repeats_is_not_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(parity.KEY, "one-secret\n")  # as `$(cat file)` does not, and --env-file does

    def repeats(path: str, body: Body, document: Any) -> Any:
        if path == "/v1/completions" and answers(body):
            return {"error": {"message": "Incorrect API key provided: one-secret"}}
        return document

    with Scripted(alter=repeats) as one:
        document = run(one.url)
        assert {headers["authorization"] for _, _, headers in one.seen} == {"Bearer one-secret"}
    assert kinds(document) >= {("greedy", "baseline", "server-error")}
    assert "secret" not in json.dumps(document) and "***" in json.dumps(document)


@pytest.mark.parametrize("key", ["two words", "a\nb", "ключ"])
def test_a_key_that_is_none(run: Run, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(parity.KEY, key)
    document = run("http://127.0.0.1:9")
    assert document["exit"] == 2 and document["problems"][0]["where"] == parity.KEY
    assert key not in json.dumps(document, ensure_ascii=False)


def test_what_may_be_a_secret_in_a_url_is_not_shown(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with Scripted(prefix="/deep") as one:
        document = run(f"{one.url}/v1/?token=hunter2")
        assert [path for path, _, _ in one.seen] == ["/v1/models?token=hunter2"]
    assert "hunter2" not in json.dumps(document)
    assert cli.main(["parity", "ftp://me:hunter2@host/"]) == 2
    assert "hunter2" not in capsys.readouterr().err


# Options


NOWHERE = "http://127.0.0.1:9"
WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing at all": ((*map(str, SPEED), "--streams", "none"), "every part is left out"),
    "a depth of nought is one": (("--depths", "0"), "unreachable"),
    "nought among others": (("--streams", "0,4"), "no number from 1"),
    "a name that no resolver takes": (("http://xn--.example:9",), "is no URL"),
    "both reports into one": (("--html", "/tmp/same", "--markdown", "/tmp/../tmp/same"), "both"),
    "a report into a device": (("--html", "/dev/null"), "is no file to write to"),
    "a report into a folder": (("--markdown", "/tmp"), "is no file to write to"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_are_wrong(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, what = WRONG[case]
    cli.main(["parity", NOWHERE, *LITTLE, *arguments])
    assert what in capsys.readouterr().err


def test_more_streams_than_files_may_be_open(capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        for option in ("--streams", "--at-once"):
            assert cli.main(["parity", NOWHERE, option, "1000"]) == 2
            assert "to 192" in capsys.readouterr().err
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_is_named_twice_is_asked_once(run: Run) -> None:
    with Scripted() as one:
        document = run(one.url, "--streams", "1,1", "--depths", "0.101,0.104,0.101")
    assert [one["repeats"] for one in document["parts"]["speed"]["rows"]["figures"]] == [1, 1]
    (row,) = document["parts"]["needles"]["rows"]["control"]
    assert row["needles"] == 2 and row["found"] == {"baseline": 2, "control": 2}


def test_no_two_streams_are_asked_the_same(run: Run) -> None:
    with Scripted() as one:
        run(one.url, *SPEED, "--streams", "1,2", "--repeats", "20")
        prompts = [tuple(body["prompt"]) for body in one.posted() if body.get("stream")]
    assert len(prompts) == 3 * 21 * 2 == len(set(prompts))
    assert len({prompt[:64] for prompt in prompts}) == 1


def test_all_prompts_of_ones_own_are_asked(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    lines = [json.dumps({"prompt": f"{n} a\u2028b\x85c"}, ensure_ascii=False) for n in range(15)]
    own.write_text("\ufeff" + "\r\n".join(lines), "utf-8")
    with Scripted() as one:
        done = launch(sys.executable, "parity", one.url, *LITTLE[2:], "--prompts", own, "--json")
    assert json.loads(done.stdout)["parts"]["greedy"]["asked"] == 15
    own.write_text(lines[0])
    with Scripted() as one:
        document = run(one.url, "--prompts", own)
    assert statuses(document)["batching"] == "not-asked"  # one alone is no batch
    assert any("batching" in note for note in document["notes"])


def test_a_report_that_cannot_be_written_in_the_end_is_still_printed(
    run: Run, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"

    def late(path: str, body: Body, document: Any) -> Any:
        page.mkdir(exist_ok=True)
        return document

    with Scripted(alter=late) as one:
        document = run(one.url, "--html", page)
    assert document["exit"] == 6 and document["verdict"] == "measured"
    assert set(statuses(document)) == set(PARTS)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    def stalls(number: int, path: str, body: Body) -> str | None:
        return "stall" if number > 40 else None

    with Scripted(script=stalls) as one:
        checkout = Path(__file__).parents[1]
        command = [sys.executable, checkout / "fixes/apply_all.py", "parity", one.url, *LITTLE]
        report = ["--timeout", "60", "--html", tmp_path / "page.html"]
        with subprocess.Popen(
            [*command, *report], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
        ) as process:
            until = time.monotonic() + 60
            while len(one.seen) < 41 and time.monotonic() < until:
                time.sleep(0.05)
            process.send_signal(2)
            out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and out == b""
    assert err.startswith(b"interrupted:") and b"Traceback" not in err and b"never" not in err
    assert list(tmp_path.iterdir()) == []
