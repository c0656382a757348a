"""Run the module form with --headless, with both ways that it can take stubbed."""

import importlib.util
import runpy
import sys
import warnings
from contextlib import ExitStack
from types import ModuleType
from unittest.mock import patch

MODULE = "vllm.entrypoints.openai.api_server"


def _import_command() -> None:
    """Import the serve command, where a stub goes in.

    Since 0.33 that takes orjson, which a Python that runs older releases may lack. An empty
    module will do: nothing is served.
    """
    lacking = importlib.util.find_spec("orjson") is None
    if lacking:
        sys.modules["orjson"] = ModuleType("orjson")
    try:
        import vllm.entrypoints.cli.serve  # noqa: F401
    finally:
        if lacking:
            del sys.modules["orjson"]


def probe() -> tuple[int, str]:
    _import_command()
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    taken: list[str] = []

    def run(coroutine):
        coroutine.close()
        taken.append("an API server")

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # deprecation, and runpy on an imported module
        for stub in (
            patch.object(sys, "argv", [MODULE, "--model", "m", "--headless"]),
            patch.dict("os.environ"),
            # Without a device the parser cannot tell its defaults.
            patch.object(platforms, "current_platform", CpuPlatform()),
            patch("uvloop.run", run),
            patch(
                "vllm.entrypoints.cli.serve.run_headless",
                lambda args: taken.append("headless workers"),
            ),
        ):
            stack.enter_context(stub)
        runpy.run_module(MODULE, run_name="__main__")
    if "an API server" in taken:
        return 1, f"the module form starts {' and '.join(taken)} for --headless"
    if taken != ["headless workers"]:
        raise RuntimeError(f"the module form took {taken or 'no way at all'}")
    return 0, "the module form starts headless workers for --headless"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
