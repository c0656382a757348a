"""Reading authored TOML files."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fixes.errors import ExitCode, FixesError, Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse(data: bytes, where: str, kind: str) -> dict[str, object]:
    """The tables of a TOML file. Raises FixesError of the given kind if it is none."""
    loads: Callable[[str], dict[str, object]] = tomllib.loads
    try:
        return loads(data.decode("utf-8"))
    except ValueError as error:
        problem = Problem(ExitCode.MISMATCH, kind, f"is not TOML: {error}", where)
        raise FixesError(problem) from None
