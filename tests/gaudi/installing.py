"""Environments with vllm_gaudi and a package that stands for the one of Gaudi's maker."""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import cache

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PLUGIN = "vllm_gaudi"
#: The environment variables that the plugin needs on a CPU.
VARIABLES = {
    "VLLM_USE_FAKE_HPU": "1",  # the plugin's own switch for a CPU
    "VLLM_CONTIGUOUS_PA": "false",  # needs a compiler for the device
    "VLLM_PROMPT_USE_FUSEDSDPA": "false",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120",
    "TORCHDYNAMO_DISABLE": "1",
}
POINTS = """\
[vllm.platform_plugins]
hpu = vllm_gaudi:register
[vllm.general_plugins]
00.names = gaudi_points:names
01.hpu_custom_utils = vllm_gaudi:register_utils
02.hpu_custom_ops = vllm_gaudi:register_ops
03.hpu_custom_models = gaudi_points:models
04.warm_up = gaudi_points:warm_up
"""
IMPORT = """
from vllm.plugins import load_general_plugins
load_general_plugins()
import vllm_gaudi.v1.worker.hpu_worker
"""


class CannotRunError(Exception):
    """There is nothing to run with."""


def install(environment: Path, tree: Path, version: str) -> None:
    """Put the plugin and the maker's package into an environment, as an installer would."""
    site = cache.site_packages(environment)
    copied = [*shutil.copytree(tree / PLUGIN, site / PLUGIN).rglob("*")]
    shutil.copytree(HERE / "vendor", site, dirs_exist_ok=True)
    info = site / f"{PLUGIN}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm-gaudi\nVersion: {version}\n"
    (info / "METADATA").write_text(text, "utf-8")
    (info / "entry_points.txt").write_text(POINTS, "utf-8")
    rows = []
    for path in sorted(one for one in (*copied, *info.iterdir()) if one.is_file()):
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(site)},sha256={digest},{len(data)}\n")
    (info / "RECORD").write_text(f"{''.join(rows)}{info.name}/RECORD,,\n", "utf-8")
    # With bytecode each of the many processes starts much sooner.
    done = subprocess.run(
        [environment / "bin/python", "-c", IMPORT],
        env=os.environ | VARIABLES | {"PYTHONDONTWRITEBYTECODE": ""},
        cwd=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
        raise CannotRunError(f"{tree} cannot be imported with this vLLM:\n{last}")


def apply(environment: Path, arguments: argparse.Namespace) -> str:
    """Fix an environment by the command line that an operator has; its last lines."""
    told = ["--profile", f"v{arguments.core}", "--verify", arguments.verify]
    if arguments.profiles:
        told += ["--profiles", str(arguments.profiles)]
    command = [environment / "bin/python", CHECKOUT / "fixes/apply_all.py"]
    done = subprocess.run(
        [*command, *told, "pipeline-parallel"],
        env=os.environ | VARIABLES,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CannotRunError(
            f"apply_all.py ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    if "gaudi-pp-transport" not in done.stdout:
        raise CannotRunError(f"profile v{arguments.core} does not offer gaudi-pp-transport")
    return "\n".join(done.stdout.splitlines()[-2:])
