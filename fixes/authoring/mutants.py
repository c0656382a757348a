"""Mutants of a fixed file: the new code is there, but not reached. A probe must tell."""

from __future__ import annotations

import ast

from fixes import functions, syntax


def mutants(pre: bytes | None, post: bytes) -> dict[str, bytes]:
    """A mutant for each function that differs between two versions of a file, by its name.

    In each one function is defined again behind its new definition: as it was, or as one that
    does nothing where it is new. Classes and statements of the module have none. Raises
    ScopeError for a function that is defined in several places, and SyntaxError.
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
    return found


def _idle(name: str, model: ast.AST) -> bytes:
    """The source of a function that does nothing, inside classes as its name says."""
    *owners, leaf = name.split(".")
    opening = "async def" if isinstance(model, ast.AsyncFunctionDef) else "def"
    lines = [f"class {owner}:" for owner in owners]
    lines += [f"{opening} {leaf}(*_args, **_kwargs):", "pass"]
    return "\n".join(" " * depth + line for depth, line in enumerate(lines)).encode()
