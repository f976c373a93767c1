"""JSON records that show when they are damaged, and of files that are not as they were recorded.

A record that this project writes ends in a digest of its own content. Records without one, of
earlier versions or written by hand, are read too: their shape is checked, which sees less.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from .files import shown, write_json
from .provenance import sha256

SEAL: Final = "sha256"
"""Key of a record's digest of itself."""
Shape = dict[str, Any]
"""Key -> type, tuple of types, a Shape, or [what each item is]; "key?" may be missing or null."""
NUMBER: Final = (int, float)


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with a digest of itself, by which a reader sees whether it is whole."""
    content = {key: value for key, value in record.items() if key != SEAL}
    text = json.dumps(content, sort_keys=True)
    return content | {SEAL: hashlib.sha256(text.encode()).hexdigest()}


def strict(value: Any, digits: int = 17) -> Any:
    """Return a value as strict JSON holds it: what is not finite is a word, "nan" or "-inf"."""
    if isinstance(value, dict):
        return {key: strict(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)
    return value


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON that `read_record` finds whole or damaged."""
    write_json(path, sealed(dict(content)))


def read_record(path: Path, shape: Shape | None = None, remedy: str = "") -> dict[str, Any]:
    """Read a JSON object of a shape; ValueError with the first fault of a damaged one.

    Args:
        remedy: what a user can do about a damaged one: "remove it to ...".
    """
    advice = f"; {remedy}" if remedy else ""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(path)} is damaged: it is not JSON ({error}){advice}") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{shown(path)} is damaged: a mapping is expected, not {_kind(content)}{advice}"
        )
    seal = content.pop(SEAL, None)
    if seal is not None and sealed(content)[SEAL] != seal:
        raise ValueError(
            f"{shown(path)} is damaged, or was changed by hand (then take its {SEAL!r} out):"
            f" its digest is another{advice}"
        )
    fault = misshapen(content, shape or {})
    if fault:
        raise ValueError(f"{shown(path)} is damaged: {fault}{advice}")
    return content


def record_of(path: Path, request: Any, remedy: str) -> dict[str, Any] | None:
    """Return the record in a file where it is of this request; None otherwise."""
    found = read_record(path, remedy=remedy) if path.is_file() else {}
    return found if found.get("request") == request else None


def misshapen(content: Any, shape: Any, name: str = "") -> str:
    """Return the first fault of a value of JSON; empty where it is of this shape."""
    if isinstance(shape, list):
        if not isinstance(content, list):
            return f"{name} is {_kind(content)}, not a list"
        faults = (misshapen(one, shape[0], f"{name}[{i}]") for i, one in enumerate(content))
        return next(filter(None, faults), "")
    if not isinstance(shape, Mapping):
        types = shape if isinstance(shape, tuple) else (shape,)
        wrong = not isinstance(content, types) or (isinstance(content, bool) and bool not in types)
        wanted = " or ".join(_NAMES.get(one, one.__name__) for one in types)
        return f"{name} is {_kind(content)}, not {wanted}" if wrong else ""
    if not isinstance(content, Mapping):
        return f"{name} is {_kind(content)}, not a mapping"
    prefix = f"{name}." if name else ""
    for key, one in shape.items():
        known, optional = key.removesuffix("?"), key.endswith("?")
        if optional and content.get(known) is None:
            continue
        if known not in content:
            return f"it has no {prefix}{known}"
        fault = misshapen(content[known], one, f"{prefix}{known}")
        if fault:
            return fault
    return ""


_NAMES: Final = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _kind(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return repr(value)[:40] if isinstance(value, str) else _NAMES[type(value)]


def refuse_changed(folder: Path, files: Any, names: Iterable[str], record: Path) -> None:
    """Raise ValueError for the first file that has changed since it was recorded, or is gone.

    Args:
        files: SHA-256 by name, as `record` has it; names that it does not hold are passed over.
        names: those to be compared.
    """
    if not isinstance(files, Mapping):
        return
    for name in names:
        recorded = files.get(name)
        path = folder / name
        if recorded is None:
            continue
        if not path.is_file():
            raise ValueError(f"{shown(path)} is gone, and {shown(record)} lists it; copy it again")
        if _known_sha256(path, path.stat().st_size, path.stat().st_mtime_ns) != recorded:
            raise ValueError(
                f"{shown(path)} is damaged or another file than {shown(record)} recorded"
                f" (SHA-256 {str(recorded)[:12]}...): copy it again from where it was made"
            )


@functools.lru_cache(maxsize=1024)
def _known_sha256(path: Path, size: int, modified: int) -> str | None:
    """Return that of a file not written since: once a process, however many ask for it."""
    return sha256(path)
