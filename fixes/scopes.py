"""Scope locks: what source-level edits rely on, pinned as syntax instead of as whole files.

A release of which there is no published wheel has no bytes to pin. What an edit relies on is
less: the function it changes, the bases of the class that holds it, the signatures of what its
new code calls. Each of them is pinned by the hash of its canonical syntax (``syntax.digest``),
which is the same on every Python; comments, layout and everything else in the file may differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from copy import copy

from fixes.edits import Edit
from fixes.lock import Scope
from fixes.syntax import DEFINITIONS, FUNCTIONS, ScopeError, digest, find_scope, level, parse

_KINDS: dict[str, tuple[type[ast.AST], ...]] = {
    "signature": FUNCTIONS,
    "bases": (ast.ClassDef,),
    "header": (ast.ClassDef, ast.Module),
}


def pins(data: bytes, edits: Iterable[Edit]) -> tuple[Scope, ...]:
    """What edits of one file rely on there.

    Raises ScopeError for a name that is not one definition, and SyntaxError.
    """
    tree = parse(data)
    wanted = {part: None for edit in edits for part in _parts(tree, edit)}
    return tuple(Scope(name, part, _digest(tree, name, part)) for name, part in wanted)


def differing(data: bytes, scopes: Sequence[Scope]) -> tuple[str, ...]:
    """In words, every scope that is not as pinned; none for a file in which all are.

    A part that is pinned several times, since releases differ in it, may be any of these.

    Raises SyntaxError for anything but Python.
    """
    tree = parse(data)
    wanted: dict[tuple[str, str], set[str]] = {}
    for scope in scopes:
        wanted.setdefault((scope.name, scope.part), set()).add(scope.sha256)
    faults = []
    for (name, part), hashes in wanted.items():
        what = f"the {part} of {name or 'the module'}" if part != "whole" else name
        try:
            if _digest(tree, name, part) not in hashes:
                faults.append(f"{what} is other code than was pinned")
        except ScopeError as error:
            faults.append(error.message)  # which names it
    return tuple(dict.fromkeys(faults))


def _parts(tree: ast.Module, edit: Edit) -> Iterable[tuple[str, str]]:
    """The names and parts that one edit relies on."""
    names = edit.scope.split(".") if edit.scope else []
    for count in range(1, len(names) + 1):
        name = ".".join(names[:count])
        if isinstance(find_scope(tree, name), FUNCTIONS):
            yield name, "whole"
            break
        yield name, "bases"
    else:
        if names and edit.op != "add-method":
            yield edit.scope, "header"
    if not names and edit.op != "add-import":
        yield "", "header"
    for name in edit.relies:
        yield name, "signature" if isinstance(find_scope(tree, name), FUNCTIONS) else "bases"


def _digest(tree: ast.Module, name: str, part: str) -> str:
    node = find_scope(tree, name)
    if part != "whole" and not isinstance(node, _KINDS[part]):
        raise ScopeError("missing", f"{name}: it has no {part}")
    if part in ("signature", "bases"):
        node = copy(node)
        node.body = [ast.Pass()]  # type: ignore[attr-defined]
    hidden = (one for one in level(node) if isinstance(one, DEFINITIONS) and part == "header")
    return digest(node, frozenset(map(id, hidden)))
