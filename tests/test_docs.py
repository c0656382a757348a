"""The documents say what the code does: keys, codes, kinds, fixes, commands, links."""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import importlib
import re
import shutil
import sys
from pathlib import Path

import cache
import pytest
from release import launch

from fixes import catalogue, edits, lock, outcome, report
from fixes.authoring import fixfile
from fixes.errors import PRECEDENCE, ExitCode, Problem
from fixes.origin import FileVerdict
from fixes.verbs import VERBS

CHECKOUT = Path(__file__).parents[1]
DOCS = sorted((CHECKOUT / "docs").glob("*.md"))
EVERY = [CHECKOUT / "README.md", *DOCS]
TEST_COMMAND = (
    "python3 -m venv .venv && .venv/bin/python -m pip install --quiet '.[test]' "
    "&& .venv/bin/python -m pytest"
)


def text(name: str) -> str:
    return (CHECKOUT / name).read_text("utf-8")


def refresh():
    sys.path.insert(0, str(CHECKOUT / "docs"))
    try:
        return importlib.import_module("refresh")
    finally:
        sys.path.pop(0)


def tables(document: str) -> list[list[list[str]]]:
    """The rows of each table, without its head; cells without code marks."""
    found: list[list[list[str]]] = [[]]
    for line in document.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip("|"))
            found[-1].append([cell.strip().replace("`", "") for cell in cells])
        elif found[-1]:
            found.append([])
    return [rows[2:] for rows in found if rows]


def first(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in row[0].split(", ")]


# Exit codes and kinds


def test_the_exit_codes_are_the_documented_ones() -> None:
    codes, _ = tables(text("docs/exit-codes.md"))
    assert [(int(row[0]), row[1]) for row in codes] == [(int(one), one.name) for one in ExitCode]
    (readme,) = [rows for rows in tables(text("README.md")) if rows[0][0] == "0"]
    assert {int(code) for code in first(readme)} == {int(code) for code in ExitCode}


def test_the_precedence_is_the_documented_one() -> None:
    told = re.search(r"the first of these decides:\n([\d, ]+)\.", text("docs/exit-codes.md"))
    assert told
    assert [int(code) for code in told[1].split(",")] == [int(code) for code in PRECEDENCE]


def running_half() -> list[Path]:
    folders = ("fixes", "fixes/commands", "fixes/fit", "fixes/launch")
    return [path for folder in folders for path in CHECKOUT.joinpath(folder).glob("*.py")]


def kinds() -> dict[str, set[str]]:
    """Kind to codes, of each Problem(...) whose code and kind are written out."""
    found: dict[str, set[str]] = {}
    for path in running_half():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem"):
                continue
            code, kind = (*node.args, None, None)[:2]
            if isinstance(kind, ast.Constant) and isinstance(code, ast.Attribute):
                found.setdefault(str(kind.value), set()).add(str(int(ExitCode[code.attr])))
    return found


def test_every_kind_of_problem_is_documented_with_its_code() -> None:
    _, documented = tables(text("docs/exit-codes.md"))
    told: dict[str, set[str]] = {}
    for kind, codes, _ in documented:
        told.setdefault(kind, set()).update(codes.split(", "))
    found = kinds()
    assert len(found) > 25
    for kind, codes in found.items():
        assert codes <= told.get(kind, set()), kind


def test_no_kind_is_documented_that_the_code_lacks() -> None:
    _, documented = tables(text("docs/exit-codes.md"))
    source = "".join(path.read_text("utf-8") for path in CHECKOUT.glob("fixes/**/*.py"))
    for kind in first(documented):
        assert f'"{kind}"' in source, kind


# Reports


def names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def test_the_keys_of_a_report_are_the_documented_ones() -> None:
    document, trees, fixes, files, problems = tables(text("docs/reports.md"))
    assert sorted(first(document)) == sorted(outcome.Report("apply").document())
    assert first(trees) == names(outcome.TreeLine)
    assert first(fixes) == names(outcome.FixLine)
    assert first(files) == names(outcome.FileLine)
    problem = Problem(ExitCode.MISMATCH, "kind", "what")
    assert first(problems) == list(report.problem_document(problem))


def test_the_verdicts_are_the_documented_ones() -> None:
    _, of_fixes, of_files = tables(text("docs/concepts.md"))
    assert first(of_files) == [verdict.value for verdict in FileVerdict]
    told = set(first(of_fixes))
    assert {need.value for need in lock.Need} - {"offered"} <= told
    source = "".join(path.read_text("utf-8") for path in running_half())
    for verdict in told:
        assert f'"{verdict}"' in source, verdict


# Authoring


def test_the_operations_of_edits_are_the_documented_ones() -> None:
    (operations,) = [rows for rows in tables(text("docs/authoring.md")) if "insert-" in rows[0][0]]
    assert set(first(operations)) == set(edits.NEEDS)
    for row in operations:
        for op in row[0].split(", "):
            told = set(re.split(r", | or ", row[1])) - {"source"}
            assert told == edits.NEEDS[op] - {"file"}, op


def test_the_keys_of_fix_toml_are_the_documented_ones() -> None:
    keys = first(tables(text("docs/authoring.md"))[0])
    assert sorted(key.removeprefix("probe.") for key in keys) == sorted(names(fixfile.FixFile))


# Fixes


@pytest.mark.parametrize("profile", catalogue.find().profiles())
def test_every_fix_of_a_lock_is_in_the_list(profile: str) -> None:
    document = text("docs/fixes.md")
    for name in catalogue.find().lock(profile).fixes:
        assert f"[{name}](#{name})" in document
        assert f"\n## {name}\n" in document


def test_the_list_of_fixes_is_what_the_locks_say() -> None:
    assert text("docs/fixes.md") == refresh().fixes(), "run: python3 docs/refresh.py"


# Commands


def test_the_readme_has_the_test_command_that_the_checks_run() -> None:
    assert f"\n{TEST_COMMAND}\n" in text("README.md")
    steps = text(".ci/run")
    assert "python3 -m venv .venv" in steps
    assert "pip install --quiet '.[test]'" in steps
    assert "-m pytest\n" in steps


@pytest.mark.wheels
def test_the_transcript_in_the_readme_is_real(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(cache.tree("vllm", "0.30.0"), tree)
    module = refresh()
    readme = text("README.md")
    (told,) = module.TRANSCRIPT.findall(readme)
    assert told == module.transcript(readme, tree), "run: python3 docs/refresh.py"


# Bundles


def test_what_bundles_share_is_what_the_document_says() -> None:
    requiring = []
    for name in catalogue.find().profiles():
        made = catalogue.find().lock(name)
        members = [(one.name, fix) for one in made.bundles.values() for fix in one.members]
        count = collections.Counter(fix for _, fix in members)
        assert {fix for fix, of in count.items() if of > 1} == {"pp-input-buffer-sync"}
        sharing = {bundle for bundle, fix in members if fix == "pp-input-buffer-sync"}
        assert sharing == {"pipeline-parallel", "pp-spec-decode"}
        for fix in made.fixes.values():
            if fix.need is lock.Need.OFFERED and "pp-input-buffer-sync" in fix.requires:
                assert fix.id == "pp-v1-async-spec"
                requiring.append(made.release)
    before = [one for one in catalogue.find().profiles() if one <= "v0.30.0"]
    assert [f"v{release}" for release in requiring] == before


@pytest.mark.wheels
def test_a_revert_of_a_bundle_does_what_the_document_says(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(cache.tree("vllm", "0.30.0"), tree)

    def run(*words: str) -> tuple[int, str]:
        done = launch(sys.executable, *words, "--tree", tree)
        return done.returncode, done.stdout + done.stderr

    both = ("pipeline-parallel", "pp-spec-decode")
    assert run(*both)[0] == 0
    code, said = run("revert", "pipeline-parallel")
    assert code == 1 and "pp-v1-async-spec" in said and "requires pp-input-buffer-sync" in said
    assert run("revert", *both, "--dry-run")[0] == 0
    code, said = run("revert", "pp-spec-decode")
    assert code == 0 and "pipeline-parallel is not whole without pp-input-buffer-sync" in said
    assert run("revert", "pipeline-parallel")[0] == 0


def known_options() -> set[str]:
    """Every option of every verb, and what is known without one."""
    found = {"--version", "--help"}
    for module in {verb.module for verb in VERBS.values()}:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"fixes.commands.{module}").add_arguments(parser)
        found |= {option for action in parser._actions for option in action.option_strings}
    return found


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_commands_in_the_documents_exist(path: Path) -> None:
    document = path.read_text("utf-8")
    pattern = r"(?:vllm-fixes|apply_all\.py)((?: [^\s`|&]+)+)"
    commands = [found.split() for found in re.findall(pattern, document)]
    fixes = {name for one in catalogue.find().profiles() for name in _names(one)}
    options = known_options()
    for words in commands:
        own = words[: words.index("--")] if "--" in words else words  # behind it is the engine's
        assert {word for word in own if word.startswith("-")} <= options, words
        if words[0] in VERBS or words[0].startswith("-"):
            assert not any(word.startswith("pp-") and word not in fixes for word in words), words


def _names(profile: str) -> list[str]:
    made = catalogue.find().lock(profile)
    return [*made.fixes, *made.bundles]


def test_the_readme_names_every_verb() -> None:
    code = " ".join(re.findall(r"`([^`\n]+)`", text("README.md")))
    assert set(VERBS) <= set(code.split())


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_links_and_files_in_the_documents_exist(path: Path) -> None:
    document = path.read_text("utf-8")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document):
        assert (path.parent / link).exists(), link
    for name in re.findall(r"`((?:docs|benchmarks|tests|fixes|\.ci)/[\w./-]*)`", document):
        assert (CHECKOUT / name).exists(), name


def test_every_document_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", text("README.md")))
    assert linked == {path.name for path in DOCS}
