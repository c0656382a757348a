"""What edits make of files: each on the original bytes, alternatives tried in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fixes.edits import Edit, EditError, Resolution
from fixes.splicing import Splicer
from fixes.syntax import ScopeError


def files(edit: Edit) -> tuple[str, ...]:
    """The paths an edit may touch, each once, in the order in which they are tried."""
    return tuple(dict.fromkeys(one.file for one in edit.alternatives or (edit,)))


def resolve(data: bytes | None, edits: Sequence[Edit]) -> Resolution:
    """The outcome of edits that all concern one file; ``data`` is None when it is absent.

    Raises EditError.
    """
    found = list(resolve_all(lambda path: data, edits).values())
    if len(found) != 1:
        raise EditError("invalid", f"the edits concern {len(found)} files, not one")
    return found[0]


def resolve_all(
    read: Callable[[str], bytes | None], edits: Sequence[Edit]
) -> dict[str, Resolution]:
    """The outcome for each file that edits touch; ``read`` gives None for an absent one.

    The first alternative that fits alone is taken. Raises EditError for the first edit that
    does not fit, with the other errors in its ``also``.
    """
    chosen: dict[str, list[tuple[int, Edit]]] = {}
    errors: list[EditError] = []
    for index, edit in enumerate(edits):
        try:
            one = _choose(read, index, edit)
        except EditError as error:
            errors.append(error)
        else:
            chosen.setdefault(one.file, []).append((index, one))
    found = {}
    for path, group in chosen.items():
        try:
            found[path] = _apply(read(path), group)
        except EditError as error:
            errors += (error, *error.also)
    if errors:
        first, *rest = sorted(errors, key=lambda error: error.index)
        raise EditError(first.kind, first.message, first.index, tuple(rest))
    return found


def _choose(read: Callable[[str], bytes | None], index: int, edit: Edit) -> Edit:
    if not edit.alternatives:
        return edit
    reasons = []
    for one in edit.alternatives:
        try:
            _apply(read(one.file), [(index, one)])
        except EditError as error:
            reasons.append((error.kind, f"{one.name} ({one.file}): {error.kind}: {error.message}"))
        else:
            return one
    # Where an alternative found its place but does not fit, that says more than drift.
    kinds = [kind for kind, _ in reasons]
    kind = next((kind for kind in kinds if kind != "drifted"), "drifted")
    raise EditError(kind, "no alternative fits: " + "; ".join(text for _, text in reasons), index)


def _apply(data: bytes | None, group: Sequence[tuple[int, Edit]]) -> Resolution:
    took = tuple(edit.name for _, edit in group if edit.name)
    index, first = group[0]
    if first.op == "add-file":
        if data is not None:
            raise EditError("drifted", f"{first.file} is there already", index)
        if len(group) > 1:
            raise EditError("invalid", f"{first.file} is added and edited", group[1][0])
        content = first.new.encode()
        return Resolution(content, ((0, 0, content),), took, (first,))
    if data is None:
        raise EditError("drifted", f"{first.file} is not there", index)
    try:
        plan = Splicer(data)
    except SyntaxError as error:
        raise EditError("invalid", f"{first.file} is not Python: {error}", index) from None
    errors = []
    for index, edit in group:
        try:
            plan.add(index, edit)
        except ScopeError as error:
            kind = "drifted" if error.kind == "missing" else error.kind
            errors.append(EditError(kind, error.message, index))
        except SyntaxError as error:
            errors.append(EditError("invalid", f"is not Python: {error}", index))
        except EditError as error:
            errors.append(error)
    if errors:
        raise EditError(errors[0].kind, errors[0].message, errors[0].index, tuple(errors[1:]))
    return replace(plan.finish(), took=took, edits=tuple(edit for _, edit in group))
