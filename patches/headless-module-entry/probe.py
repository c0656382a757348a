"""Run the module form with --headless, with both ways that it can take stubbed."""

import runpy
import sys
import warnings
from unittest.mock import patch

MODULE = "vllm.entrypoints.openai.api_server"


def probe() -> tuple[int, str]:
    import vllm.entrypoints.cli.serve  # noqa: F401  (the stub goes in there)

    taken: list[str] = []

    def run(coroutine):
        coroutine.close()
        taken.append("an API server")

    with (
        warnings.catch_warnings(),
        patch.object(sys, "argv", [MODULE, "--model", "m", "--headless"]),
        patch.dict("os.environ"),
        patch("uvloop.run", run),
        patch("vllm.entrypoints.cli.serve.run_headless", lambda args: taken.append("headless")),
    ):
        warnings.simplefilter("ignore")  # deprecation, and runpy on an imported module
        runpy.run_module(MODULE, run_name="__main__")
    if taken != ["headless"]:
        return 1, f"the module form starts {' and '.join(taken) or 'nothing'} for --headless"
    return 0, "the module form obeys --headless"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
