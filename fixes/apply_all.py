"""The entrypoint: ``python3 fixes/apply_all.py --profile v0.30.0 pipeline-parallel``.

It runs from a plain checkout on any interpreter that can start an engine. It parses on
Python 3.6, so that an old ``python3`` gets a sentence and not a syntax error.
"""

import os
import sys


def too_old() -> bool:
    """Whether this interpreter cannot run the package; then that has been said."""
    if sys.version_info >= (3, 10):
        return False
    sys.stderr.write(
        "vllm-fixes needs Python 3.10 or newer, this is %d.%d.\n"
        "Run it with the interpreter that runs vLLM, or name that one by --python from a\n"
        "newer interpreter. Nothing was changed.\n" % sys.version_info[:2]
    )
    sys.stderr.flush()
    return True


def _start() -> int:
    if too_old():
        return 2
    # A script's own folder is first on the search path: a module of ours called like one of
    # the standard library's would shadow it. The package's parent takes its place.
    package = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != package]
    sys.path.insert(0, os.path.dirname(package))
    from fixes.cli import main

    return main()


if __name__ == "__main__":
    code = _start()
    # Everything is written and flushed by now. Taking the interpreter down in order costs a
    # tenth of the already-applied run, which every container start pays.
    os._exit(code)
