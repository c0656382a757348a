"""A vLLM plugin that stops an engine whose files are not those that vllm-fixes put there.

vLLM calls the entry points of ``vllm.general_plugins`` in every process of an engine, on every
node, before a model is loaded. It swallows what goes wrong while it *loads* one, so nothing
happens at import here; and its callers differ in what they do with an exception, so `check`
ends the process itself.

The files are those of the state that an apply wrote (fixes/state.py: a sealed JSON document,
``fixes-applied.json`` in the owning dist-info or ``_fixes_applied.json`` in a checkout's
package), or those of the overlay that is in use (docs/overlay.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__version__ = "0.1.0"

STATE = "fixes-applied.json"
BARE_STATE = "_fixes_applied.json"
MANIFEST = "overlay.json"
#: The digest that must be in; unset: any. Not VLLM_...: vLLM warns of variables of that kind that
#: it does not know, or refuses them.
WANTED = "FIXES_DIGEST"
#: Tells the processes that this one starts that the digest has been logged.
TOLD = "_FIXES_GUARD_TOLD"

#: The exit codes of vllm-fixes for what does not fit, and for another digest.
MISMATCH, DIGEST_DIFFERS = 1, 10
_LENGTH = len(b'{\n "checksum": "",') + 64
_AGAIN = "apply the fixes again (`vllm-fixes apply`)"
_NOT_NEEDED = "take the guard out, or apply one that is needed (`vllm-fixes apply`)"
_NONE_IN = (
    "no fix is in: nothing was applied here, or the fixes asked for are all upstream; "
    f"{_NOT_NEEDED}, or put the overlay that is meant on PYTHONPATH"
)


class WrongError(Exception):
    """What is in use here is not what was put there."""

    def __init__(self, *faults: str, hint: str = _AGAIN, code: int = MISMATCH) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults
        self.hint = hint
        self.code = code


class Source(NamedTuple):
    """What a document records of one target: its release, and the sha256 of files in a folder.

    ``located`` are files of an overlay whose modules give the installed path as theirs.
    """

    document: str
    folder: str
    release: str
    digest: str
    files: Mapping[str, str]
    located: frozenset[str] = frozenset()

    @property
    def target(self) -> str:
        """The import package."""
        return next(iter(self.files)).partition("/")[0]


def check() -> None:
    """End this process unless vLLM is as it was fixed. Called by vLLM; never raises."""
    try:
        digest, count = examine(sys.modules, sys.path, os.environ.get(WANTED), sys.meta_path)
    except WrongError as error:
        _stop(error.faults, error.hint, error.code)
    except BaseException as error:  # whatever it is: nothing was shown to be right
        _stop([f"the check itself failed: {error!r}"], "report this as a fault of it", MISMATCH)
    else:
        _tell(digest, count)


def examine(
    modules: Mapping[str, Any], path: Sequence[str], wanted: str | None, finders: Sequence[Any] = ()
) -> tuple[str, int]:
    """The digest of all that is recorded for the vLLM among the modules, and how many files.

    Raises WrongError with everything that is not as recorded, among the files and among those
    modules that are imported already.
    """
    package = _folder(modules.get("vllm"))
    if package is None:
        raise WrongError("no vllm is imported in this process")
    sources = _of_overlay(path, finders)
    sources = sources or [_of_vllm(package), *_of_others(modules, path)]
    files = [(source, name, post) for source in sources for name, post in source.files.items()]
    faults = [fault for source in sources for fault in _of_another_release(source)]
    for source, name, post in files:
        place = os.path.join(source.folder, name)
        faults += _changed(place, post)
        if name not in source.located:
            faults += _imported_elsewhere(modules, name, place)
    if faults:
        raise WrongError(*faults)
    digest = _digest(sources)
    for source in sources:
        if source.digest != digest:
            what = f"{source.document} is of digest sha256:{source.digest}, and what is recorded"
            raise WrongError(f"{what} here makes sha256:{digest}: another state is gone or new")
    if wanted is not None and wanted.removeprefix("sha256:") != digest:
        what = f"the digest is sha256:{digest}, and {WANTED} is {wanted or 'empty'}"
        hint = f"apply the same fixes on every node, or set {WANTED} to what is meant"
        raise WrongError(what, hint=hint, code=DIGEST_DIFFERS)
    return digest, len(files)


def _digest(sources: Sequence[Source]) -> str:
    """As fixes/digest.py makes it: over targets, releases, paths and contents."""
    releases = sorted((source.target, source.release) for source in sources)
    files = sorted((one.target, *file) for one in sources for file in one.files.items())
    lines = [f"{' '.join(words)}\n" for words in (*releases, *files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _of_overlay(path: Sequence[str], finders: Sequence[Any]) -> list[Source]:
    """What the overlay that is in use serves; its own hook has looked at what lies underneath."""
    used = [folder for one in finders if (folder := getattr(one, "vllm_fixes_overlay", None))]
    for folder in path:
        there = os.path.isfile(os.path.join(folder, MANIFEST))
        if there and os.path.realpath(folder) not in map(os.path.realpath, used):
            what = f"{folder} is an overlay on the search path that is not in use"
            hint = "put it first on PYTHONPATH, and start Python without -S, -I and -E"
            raise WrongError(what, hint=hint)
    if not used:
        return []
    document = os.path.join(used[0], MANIFEST)
    body = _unsealed(document)
    try:
        releases = {str(name): str(one["release"]) for name, one in body["targets"].items()}
        files = {str(file["path"]): str(file["post"]) for file in body["files"]}
        located = frozenset(str(file["path"]) for file in body["files"] if file["located"])
        digest = str(body["digest"])
        if not releases:
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WrongError(f"{document} is not one that vllm-fixes wrote") from error
    if not files:
        what = f"{used[0]} is an overlay in use that holds no file: no fix is in"
        hint = f"the fixes asked for are all upstream; {_NOT_NEEDED}"
        raise WrongError(what, hint=hint)
    folder = os.path.join(used[0], "post-images")
    return [
        Source(
            document,
            folder,
            release,
            digest,
            {name: post for name, post in files.items() if name.startswith(f"{target}/")},
            located,
        )
        for target, release in releases.items()
    ]


def _of_vllm(package: str) -> Source:
    """The state of the package that is imported; there must be one."""
    folder = os.path.dirname(package)
    owned = [source for source in _owned(folder) if source.target == "vllm"]
    bare = os.path.join(package, BARE_STATE)
    if not owned and os.path.lexists(bare):
        owned = [_read(bare, folder)]
    if not owned:
        what = f"no fixes are recorded for {package}: never fixed, or installed anew since"
        raise WrongError(what, hint=_NONE_IN)
    return owned[0]


def _of_others(modules: Mapping[str, Any], path: Sequence[str]) -> list[Source]:
    """The states of plugins that are fixed together with vLLM, the first of each target."""
    found: dict[str, Source] = {}
    for folder in dict.fromkeys(entry or os.curdir for entry in path):
        for source in _owned(folder):
            found.setdefault(source.target, source)
    for name, module in list(modules.items()):
        package = None if "." in name else _folder(module)
        if package and os.path.lexists(bare := os.path.join(package, BARE_STATE)):
            source = _read(bare, os.path.dirname(package))
            found.setdefault(source.target, source)
    found.pop("vllm", None)
    return [found[target] for target in sorted(found)]


def _owned(folder: str) -> Iterator[Source]:
    """The states in the dist-infos of a folder that own what they record."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # a zip, or nothing
        return
    for name in names:
        state = os.path.join(folder, name, STATE)
        if name.endswith(".dist-info") and os.path.lexists(state):
            source = _read(state, folder)
            line = f"{source.target}/__init__.py,".encode()
            record = _bytes(os.path.join(folder, name, "RECORD")) or b""
            if record.startswith(line) or b"\n" + line in record:
                yield source


def _unsealed(document: str) -> dict[str, Any]:
    """A document whose first key is the sha256 of every byte behind it (fixes/digest.py)."""
    data = _bytes(document) or b""
    seal = hashlib.sha256(data[_LENGTH:]).hexdigest().encode()
    if data[:_LENGTH] != b'{\n "checksum": "' + seal + b'",':
        raise WrongError(f"{document} is damaged: its checksum does not match its content")
    try:
        body: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise WrongError(f"{document} is no JSON") from error
    return body


def _read(document: str, folder: str) -> Source:
    """A state."""
    body = _unsealed(document)
    try:
        files = {str(file["path"]): str(file["post"]) for file in body["files"]}
        release = str(body["release"]).partition("+")[0]
        if not files or any(".." in name.split("/") for name in files):
            raise ValueError
        return Source(document, folder, release, str(body["digest"]), files)
    except (KeyError, TypeError, ValueError) as error:
        raise WrongError(f"{document} is not a state that vllm-fixes wrote") from error


def _of_another_release(source: Source) -> Iterator[str]:
    """What says that the metadata beside a state is another release's."""
    data = _bytes(os.path.join(os.path.dirname(source.document), "METADATA")) or b""
    for line in data.partition(b"\n\n")[0].decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        told = value.strip().partition("+")[0]
        if key.lower() == "version" and told != source.release:
            yield f"{source.document} is of {source.release}, and {told} is installed"


def _changed(place: str, post: str) -> Iterator[str]:
    data = _bytes(place)
    if data is None:
        there = os.path.exists(place) and not os.path.isfile(place)
        yield f"{place} is {'no regular file' if there else 'missing, or cannot be read'}"
    elif (now := hashlib.sha256(data).hexdigest()) != post:
        yield f"{place} has changed since: sha256 {now[:12]}, not {post[:12]}"


def _imported_elsewhere(modules: Mapping[str, Any], name: str, place: str) -> Iterator[str]:
    """What says that a module came from another file; ``python -m`` runs one as __main__."""
    dotted = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    main = modules.get("__main__")
    running = getattr(getattr(main, "__spec__", None), "name", None) == dotted
    for module in (modules.get(dotted), main if running else None):
        if module is None:
            continue
        origin = str(getattr(module, "__file__", None))
        if os.path.realpath(origin) != os.path.realpath(place):
            yield f"{dotted} was imported from {origin}, not from {place}"


def _folder(module: Any) -> str | None:
    """The folder of a package that is imported."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not hasattr(module, "__path__"):
        return None
    return os.path.dirname(os.path.abspath(file))


def _bytes(path: str) -> bytes | None:
    """A regular file's content; opening anything else waits for nobody."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(number, "rb") as stream:
            if stat.S_ISREG(os.fstat(number).st_mode):
                return stream.read()
    except OSError:
        pass
    return None


def _tell(digest: str, count: int) -> None:
    """Log the digest in the first process of an engine; the others are started by it."""
    import logging

    first = os.environ.get(TOLD) != digest
    os.environ[TOLD] = digest
    log = logging.getLogger("vllm.fixes_guard")
    level = logging.INFO if first else logging.DEBUG
    log.log(level, "vllm-fixes: %d files are as recorded, digest sha256:%s", count, digest)


def _stop(faults: Sequence[str], hint: str, code: int) -> None:
    """Say why, and end this process whatever its threads and callers are doing."""
    import multiprocessing

    name = f"{multiprocessing.current_process().name}, pid {os.getpid()}"
    lines = [f"vllm-fixes-guard: vLLM is not as it was fixed and is stopped ({name})"]
    lines += [f"  {fault}" for fault in faults]
    lines += [f"  what to do: {hint}", ""]
    try:
        os.write(2, "\n".join(lines).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)
