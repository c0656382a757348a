"""Stands for the package of Gaudi's maker, so that vllm_gaudi runs on a CPU.

Its modules are made by `device`, when the package is imported.
"""

from habana_frameworks import device

device.install()
