"""``apply``: plan in memory, commit as one transaction, verify, report."""

from __future__ import annotations

import argparse
import os

from fixes import cli, overlays, recall, report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    cli.common_arguments(parser, "+")
    cli.wait_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Apply the named fixes and verify them. The exit code is the verdict."""
    # What an overlay on PYTHONPATH serves hides the tree that a recall would answer for.
    document = None if overlays.named(os.environ) else recall.answer(options)
    if document is None:
        from fixes import application

        document = application.run(options).document()
    return report.show(document, as_json=options.json, quiet=options.quiet)
