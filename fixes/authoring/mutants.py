"""Mutants of a fixed file: the new code is there, but not reached. A probe must tell."""

from __future__ import annotations

import ast

from fixes import functions, syntax
from fixes.source import Source


def mutants(pre: bytes | None, post: bytes) -> dict[str, bytes]:
    """A mutant for each function that differs between two versions of a file, by its name.

    In each one function is defined again behind its new definition: as it was, or as one that
    does nothing where it is new. Of what is outside of functions only a new ``if`` has one,
    which never takes its branch. Raises ScopeError for a function that is defined in several
    places, and SyntaxError.
    """
    tree = syntax.parse(post)
    found = {}
    for name in functions.changed(pre, post):
        owner, _, leaf = name.rpartition(".")
        (*_, last) = syntax.definitions(syntax.find_scope(tree, owner), leaf)
        if isinstance(last, ast.ClassDef):
            continue
        try:
            found[name] = functions.shadow(pre or b"", post, name)
        except syntax.ScopeError as error:
            if error.kind != "missing":
                raise
            found[name] = functions.shadow(_idle(name, last), post, name)
    return found | _branches(pre, post)


def _branches(pre: bytes | None, post: bytes) -> dict[str, bytes]:
    """A mutant for each ``if`` of the module with a new condition, which is false there."""
    known = {syntax.dump(node.test) for node in _conditional(syntax.parse(pre or b""))}
    source = Source(post)
    found = {}
    for node in _conditional(source.tree):
        if syntax.dump(node.test) not in known:
            start, end = source.start(node.test), source.end(node.test)
            found[f"if {ast.unparse(node.test)}"] = post[:start] + b"False" + post[end:]
    return found


def _conditional(tree: ast.Module) -> list[ast.If]:
    return [node for node in syntax.level(tree) if isinstance(node, ast.If)]


def _idle(name: str, model: ast.AST) -> bytes:
    """The source of a function that does nothing, inside classes as its name says."""
    *owners, leaf = name.split(".")
    opening = "async def" if isinstance(model, ast.AsyncFunctionDef) else "def"
    lines = [f"class {owner}:" for owner in owners]
    lines += [f"{opening} {leaf}(*_args, **_kwargs):", "pass"]
    return "\n".join(" " * depth + line for depth, line in enumerate(lines)).encode()
