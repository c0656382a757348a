"""``apply``: plan in memory, commit as one transaction, verify, report."""

from __future__ import annotations

import argparse
import os

from fixes import cli, recall, report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    cli.common_arguments(parser, "+")
    cli.wait_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Apply the named fixes and verify them. The exit code is the verdict."""
    document = None if _overlaid() else recall.answer(options)
    if document is None:
        from fixes import application

        document = application.run(options).document()
    return report.show(document, as_json=options.json, quiet=options.quiet)


def _overlaid() -> bool:
    """Whether an overlay on PYTHONPATH may hide the tree that a recall would answer for."""
    if not os.environ.get("PYTHONPATH"):
        return False
    from fixes import overlays

    return bool(overlays.named(os.environ))
