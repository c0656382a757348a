"""A vLLM plugin that changes a file in one kind of process, as somebody might meanwhile.

TAMPER is the start of the process's name, a colon, and the file. vLLM calls it before the
plugins of the environment, since its folder is on PYTHONPATH.
"""

import multiprocessing
import os


def meddle():
    name, _, file = os.environ.get("TAMPER", "").partition(":")
    if file and multiprocessing.current_process().name.startswith(name):
        with open(file, "a", encoding="utf-8") as stream:
            stream.write("\n")
