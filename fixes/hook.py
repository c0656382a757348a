"""The start-up hook of an overlay, which holds this file as its ``sitecustomize.py``.

Nearly every Python process of a container runs it, and few import vLLM: up to the first import of
a target it uses nothing but what the interpreter has loaded anyway. It must then hold: either the
fixed modules are served, or the process ends. An exception is no end: callers catch them
(``except ImportError``), and ``site`` prints and goes on.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False  # typing's is the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = os.path.join(HERE, "post-images")


def refuse(what: Iterable[str], where: str = "") -> NoReturn:
    """Say what does not fit and what to do, and end this process."""
    goes = f" does not go with {where}" if where else ""
    lines = [
        f"vllm-fixes: the overlay {HERE}{goes}; process {os.getpid()} ends here",
        *(f"  {line}" for line in what),
        "  make the overlay anew: vllm-fixes overlay FIX... --to DIR; or take it off PYTHONPATH",
        "",
    ]
    try:
        os.write(2, "\n".join(lines).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(1)


class Finder:
    """Serves the fixed modules; everything else is left to the finders behind it.

    ``vllm_fixes_overlay`` tells others which overlay is active in a process.
    """

    def __init__(self) -> None:
        self.vllm_fixes_overlay = HERE
        # The manifest is read at an import only. What is not listed is found out at that of vllm.
        try:
            self._targets = frozenset(("vllm", *os.listdir(FILES)))
        except OSError:
            self._targets = frozenset(("vllm",))
        self._relative = _relative()
        self._asked: set[tuple[int, str]] = set()
        self._manifest: dict[str, Any] = {}
        self._roots: dict[str, str] = {}
        self._sources: dict[str, bytes] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a fixed module, or of a target with the check in front of it."""
        top = name.partition(".")[0]
        if top not in self._targets or (get_ident(), name) in self._asked:
            return None
        if name == top:
            found = self._installed(name, path, target)
            if found is not None:
                found.loader = _Gate(self, found)  # type: ignore[assignment]
            return found
        if not path:  # below a package that someone made up
            return None
        root = self._root(top, name, path)
        entry = next((file for file in self._files(top) if file["module"] == name), None)
        if entry is None:
            return None
        return self._served(entry, root, self._installed(name, path, target))

    def _installed(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """What would be imported without this finder. Others may ask the whole row again."""
        key = (get_ident(), name)
        self._asked.add(key)
        try:
            for finder in sys.meta_path:
                ask = getattr(finder, "find_spec", None)
                if finder is not self and ask is not None:
                    found: ModuleSpec | None = ask(name, path, target)
                    if found is not None:
                        return found
            return None
        finally:
            self._asked.discard(key)

    def _root(self, top: str, name: str, path: Iterable[str]) -> str:
        """The checked folder of a target; its package may have been made by others."""
        if top not in self._roots:
            folder = next(iter(path))
            for _ in range(name.count(".") - 1):
                folder = os.path.dirname(folder)
            self._check(top, folder)
        return self._roots[top]

    def check(self, found: ModuleSpec) -> Loader | None:
        """Refuse, or give the loader if the package's own file is a fixed one."""
        name, origin = found.name, found.origin or ""
        places = list(found.submodule_search_locations or ())
        folder = os.path.dirname(origin)
        if not places:
            refuse([f"{origin} is imported as {name}, and it is no package"])
        if os.path.basename(origin) != "__init__.py":
            refuse([f"{', '.join(places)} has no __init__.py (a namespace package)"])
        if not os.path.isfile(origin):
            refuse([f"{origin} is no file (an archive, as zipimport takes it)"])
        if [os.path.realpath(place) for place in places] != [os.path.realpath(folder)]:
            refuse([f"{name} is spread over several folders: {', '.join(places)}"])
        self._check(name, folder)
        for entry in self._files(name):
            if entry["module"] == name:
                served = self._served(entry, folder, found)
                found.origin, found.cached = served.origin, served.cached
                return served.loader  # type: ignore[return-value]
        return None

    def _check(self, top: str, root: str) -> None:
        """Refuse unless overlay and installed files are what the manifest says."""
        wrong = []
        active = (getattr(finder, "vllm_fixes_overlay", HERE) for finder in sys.meta_path)
        others = {os.path.realpath(folder) for folder in active}
        if len(others) > 1:
            wrong.append(f"several overlays are active: {', '.join(sorted(others))}")
        if self._relative is not None:
            told = f"PYTHONPATH names the overlay by a relative path ({self._relative or 'empty'})"
            wrong.append(f"{told}: give the absolute path {HERE}, children may start elsewhere")
        try:
            self._manifest = self._manifest or _manifest()
            about = self._manifest["targets"][top]
            unseen = sorted(set(self._manifest["targets"]) - self._targets)
        except (OSError, ValueError, LookupError) as error:
            refuse([f"{HERE}/overlay.json: {error}", *wrong])
        wrong += [f"{FILES}/{name} is not there" for name in unseen]
        site = os.path.dirname(root)
        if about["dist_info"]:
            wrong += _version(site, about)
        started = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        as_script = getattr(sys.modules.get("__main__"), "__spec__", None) is None
        for entry in self._files(top):
            fixed, place = f"{FILES}/{entry['path']}", f"{site}/{entry['path']}"
            data = _read(fixed)
            if _sha256(data) != entry["post"]:
                wrong.append(f"{fixed}: {_is(data)}, the fixed file is {entry['post'][:12]}")
            self._sources[entry["path"]] = data or b""
            data = _read(place)
            if _sha256(data) not in entry["underneath"]:
                known = " or ".join(sha[:12] or "no file" for sha in entry["underneath"])
                wrong.append(f"{place}: {_is(data)}, expected {known}")
            if as_script and started and os.path.realpath(started) == os.path.realpath(place):
                wrong.append(f"{place} runs as a script: start it by -m {entry['module']}")
        for path, known in self._manifest["relied"].items():
            if path.startswith(f"{top}/") and _sha256(data := _read(f"{site}/{path}")) != known:
                wrong.append(f"{site}/{path}: {_is(data)}, expected {known[:12]}")
        beside = f"{about['dist_info']}/fixes-applied.json" if about["dist_info"] else ""
        wrong += self._beside(
            top, site, f"{site}/{beside}" if beside else f"{root}/_fixes_applied.json"
        )
        if wrong:
            refuse(wrong, root)
        self._roots[top] = root

    def _beside(self, top: str, site: str, state: str) -> list[str]:
        """Fixes in place in files that this overlay does not hold: no digest would be true."""
        data = _read(state)
        if data is None:
            return []
        import json

        held = {file["path"] for file in self._files(top)}
        try:
            told = [file for file in json.loads(data)["files"] if file["path"] not in held]
            # The bytes count: the release may have been installed again since.
            fixed = [f for f in told if _sha256(_read(f"{site}/{f['path']}")) != f["pre"]]
            names = sorted({name for file in fixed for name in file["fixes"]})
        except (ValueError, LookupError, TypeError) as error:
            return [f"{state}, the state of the installed files: {error!r}"]
        paths = ", ".join(file["path"] for file in fixed)
        return (
            [f"{site} is fixed in place as well with {', '.join(names)} ({paths})"] if fixed else []
        )

    def _files(self, top: str) -> list[dict[str, Any]]:
        return [file for file in self._manifest["files"] if file["target"] == top]

    def _served(self, entry: dict[str, Any], root: str, real: ModuleSpec | None) -> ModuleSpec:
        """The spec of a fixed file, unless something else than the checked one is in its place."""
        from importlib.util import spec_from_file_location

        name, path = entry["module"], entry["path"]
        place = f"{os.path.dirname(root)}/{path}"
        origin = (real.origin or "no file") if real else ""
        if os.path.realpath(origin or place) != os.path.realpath(place):
            refuse([f"{name} would be imported from {origin}, not from {place}"], root)
        package = [os.path.dirname(place)] if path.endswith("/__init__.py") else None
        spec = spec_from_file_location(
            name,
            f"{FILES}/{path}",
            loader=_loader(entry, self._sources[path], place),
            submodule_search_locations=package,
        )
        assert spec is not None
        return spec


class _Gate:
    """Stands in front of a package's loader until the package is really imported.

    ``find_spec`` alone is a question (transformers asks it of vLLM), and answers nothing.
    """

    def __init__(self, finder: Finder, found: ModuleSpec) -> None:
        self._finder = finder
        self._found = found
        self._loader: Any = found.loader

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy asks before there is a loader
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        made: ModuleType | None = create(spec) if create else None
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Check, then import as if this had not been there."""
        loader = self._finder.check(self._found) or self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = loader
        module.__loader__ = loader
        loader.exec_module(module)

    def get_code(self, name: str) -> CodeType | None:
        loader: Any = self._finder.check(self._found) or self._loader
        code: CodeType | None = loader.get_code(name)
        return code


if TYPE_CHECKING:
    from importlib.machinery import SourceFileLoader as Loader


def _loader(entry: dict[str, Any], source: bytes, place: str) -> Loader:
    """The loader of one fixed file: the bytes that were checked, and bytecode that was pinned."""
    from importlib.machinery import SourceFileLoader

    class OverlayLoader(SourceFileLoader):
        def exec_module(self, module: ModuleType) -> None:
            if entry["located"]:
                module.__file__ = place
            super().exec_module(module)

        def get_data(self, path: str) -> bytes:
            if path == self.path:
                return source
            if not path.endswith(".pyc"):
                return super().get_data(path)
            tag = sys.implementation.cache_tag
            folder, name = os.path.split(self.path)
            cached = f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc"
            data = None if sys.flags.optimize else _read(cached)
            if data is None or _sha256(data) != entry["bytecode"]:
                raise FileNotFoundError(path)  # then it is compiled
            return data

        def path_stats(self, path: str) -> dict[str, int]:
            return {"mtime": 0, "size": len(source)}

        def set_data(self, path: str, data: bytes, *, _mode: int = 0o666) -> None:  # type: ignore[override]
            """Nothing is written at run time."""

        def get_resource_reader(self, name: str | None = None) -> Any:
            """What lies beside the installed file."""
            return SourceFileLoader(entry["module"], place).get_resource_reader(name)

    return OverlayLoader(entry["module"], f"{FILES}/{entry['path']}")


def _relative() -> str | None:
    """The entry of PYTHONPATH that names this folder, if only relative ones do."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if HERE in entries:  # nearly always
        return None
    real = os.path.realpath(HERE)
    try:
        named = [entry for entry in entries if os.path.realpath(entry or ".") == real]
    except OSError:  # the working directory is gone
        return None
    relative = not any(os.path.isabs(entry) for entry in named)
    return named[0] if named and relative else None


def _manifest() -> dict[str, Any]:
    """The manifest. Raises ValueError if a byte is not as it was sealed, OSError."""
    import json

    with open(f"{HERE}/overlay.json", "rb") as stream:
        data = stream.read()
    head, _, rest = data.partition(b",")
    if head != b'{\n "checksum": "%s"' % _sha256(rest).encode():
        raise ValueError("its checksum does not match its content")
    manifest: dict[str, Any] = json.loads(data)
    if manifest["format"] != 1:
        raise ValueError("it has another format")
    return manifest


def _version(site: str, about: dict[str, str]) -> list[str]:
    """What is wrong with the distribution that owns the files."""
    info = f"{site}/{about['dist_info']}"
    made_for = f"it was made for {about['distribution']} {about['version']}"
    data = _read(f"{info}/METADATA")
    if data is None:
        stem = about["dist_info"].partition("-")[0].lower()
        try:
            names = sorted(os.listdir(site))
        except OSError:
            names = []
        near = [n for n in names if n.endswith("-info") and n.partition("-")[0].lower() == stem]
        return [f"{info} is not there ({', '.join(near) or 'nor another version'}): {made_for}"]
    headers = data.decode("utf-8", "replace").partition("\n\n")[0].splitlines()
    version = next((h.partition(":")[2].strip() for h in headers if h.startswith("Version:")), "")
    return [] if version == about["version"] else [f"{info} says version {version}: {made_for}"]


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return None


def _sha256(data: bytes | None) -> str:
    from hashlib import sha256

    return "" if data is None else sha256(data).hexdigest()


def _is(data: bytes | None) -> str:
    return "cannot be read" if data is None else f"sha256 {_sha256(data)[:12]}"


def start() -> None:
    """Take effect, then give way to the start-up file that this one stands before."""
    finder = Finder()
    early = sorted(finder._targets & sys.modules.keys())
    if early:
        refuse([f"{', '.join(early)} was imported before any start-up hook (by a .pth file?)"])
    sys.meta_path.insert(0, finder)
    behind = sys.path.index(HERE) + 1 if HERE in sys.path else len(sys.path)
    rest = [entry for entry in sys.path[behind:] if entry != HERE]
    for other in sys.meta_path[1:]:
        ask = getattr(other, "find_spec", None)
        spec = ask("sitecustomize", rest, None) if ask else None
        if spec is not None and spec.loader is not None:
            module = type(sys)("sitecustomize", None)
            module.__spec__, module.__loader__ = spec, spec.loader
            module.__file__, module.__package__ = spec.origin, ""
            module.__cached__ = spec.cached  # type: ignore[attr-defined]
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            break


if __name__ == "sitecustomize":
    start()
