"""The functions of a file: which of them two versions differ in, and mutants that put one back."""

from __future__ import annotations

import ast

from fixes.source import Source, reindent
from fixes.syntax import (
    DEFINITIONS,
    FUNCTIONS,
    Definition,
    definitions,
    dump,
    find_scope,
    level,
    parse,
    suites,
)


def changed(pre: bytes | None, post: bytes) -> tuple[str, ...]:
    """The qualified names of what is new or differs between two versions of a file.

    Functions and methods count whole, with what is nested in them; a class counts by its
    header and its own statements, and when it has lost a member. Statements of the module
    have no name. Raises SyntaxError.
    """
    before = _outline(parse(pre)) if pre is not None else {}
    after = _outline(parse(post))
    names = [name for name, dumps in after.items() if before.get(name) != dumps]
    for name in before:
        owner = name.rpartition(".")[0]
        if name not in after and owner in after and owner not in names:
            names.append(owner)
    return tuple(names)


def _outline(tree: ast.Module) -> dict[str, list[str]]:
    """The dumps of all definitions by qualified name, each without those listed apart."""
    found: dict[str, list[str]] = {}
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, scope = stack.pop()
        inner = [node for node in level(scope) if isinstance(node, DEFINITIONS)]
        if isinstance(scope, ast.ClassDef):
            hidden = frozenset(id(node) for node in inner)
            found.setdefault(prefix, []).append(dump(scope, hidden))
        elif isinstance(scope, FUNCTIONS):
            found.setdefault(prefix, []).append(dump(scope))
            continue
        stack += [(f"{prefix}.{node.name}".lstrip("."), node) for node in reversed(inner)]
    return found


def shadow(pre: bytes, post: bytes, name: str) -> bytes:
    """``post`` with the definition ``name`` of ``pre`` repeated right behind its own.

    The new code is still there but no longer reached: a mutant that a probe must find out.
    A name with several definitions side by side (a property's) is repeated whole. Raises
    ValueError (ScopeError) when the name is not defined in both, or in several places, and
    SyntaxError.
    """
    old, new = Source(pre), Source(post)
    originals, (*_, last) = _siblings(old.tree, name), _siblings(new.tree, name)
    at = new.rest(new.end(last))[0]
    start = new.start(last)
    indent, eol = new.indent(start).decode(), new.eol.decode()
    mutant = new.data[:at]
    for node in originals:
        begin = old.start(node)
        source = old.data[begin - len(old.indent(begin)) : old.rest(old.end(node))[0]]
        mutant += new.eol + reindent(source.decode(), indent, eol).encode()
    mutant += new.data[at:]
    parse(mutant)
    return mutant


def _siblings(tree: ast.Module, name: str) -> list[Definition]:
    owner, _, leaf = name.rpartition(".")
    scope = find_scope(tree, owner)
    found = definitions(scope, leaf)
    together = any(all(node in suite.body for node in found) for suite in suites(scope))
    if not found or not together:
        find_scope(tree, name)
    return found
