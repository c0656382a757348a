"""A start-up hook behind an overlay's: each process that has imported vLLM says what it runs.

It writes to the folder that WATCH names, once a second: of every fixed module that is loaded, where
its code is from, and the code of a function in it.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FunctionType


def functions(module):
    """The functions of a module, and of the classes in it."""
    for value in list(vars(module).values()):
        inside = list(vars(value).values()) if isinstance(value, type) else [value]
        for one in inside:
            if isinstance(one, FunctionType) and one.__module__ == module.__name__:
                yield one


def told(module):
    return {
        "file": module.__file__,
        "origin": module.__spec__.origin,
        "cached": module.__cached__,
        "code": sorted({one.__code__.co_filename for one in functions(module)}),
    }


def complete(name):
    """Whether a module is loaded, and not just being imported."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def watch(folder):
    (overlay,) = (f for f in sys.meta_path if hasattr(f, "vllm_fixes_overlay"))
    place = overlay.vllm_fixes_overlay
    names = [
        file["module"] for file in json.loads(Path(place, "overlay.json").read_bytes())["files"]
    ]
    while True:
        time.sleep(1)
        if "vllm" not in sys.modules:
            continue
        loaded = {name: sys.modules[name] for name in names if complete(name)}
        if not loaded:
            continue
        command = Path("/proc/self/cmdline").read_bytes().decode()
        known = {
            "overlay": place,
            "user": os.getuid(),
            "vllm": sys.modules["vllm"].__file__,
            "process": command.replace("\0", " ").strip(),
            "modules": {name: told(module) for name, module in loaded.items()},
        }
        new = Path(folder, f".{os.getpid()}")
        new.write_text(json.dumps(known))
        new.rename(Path(folder, f"{os.getpid()}.json"))


def start():
    folder = os.environ.get("WATCH")
    if folder:
        threading.Thread(target=watch, args=(folder,), daemon=True).start()


start()
os.register_at_fork(after_in_child=start)
