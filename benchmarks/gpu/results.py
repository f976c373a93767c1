"""Table rows in a file, so that a later run measures only the missing ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Results:
    """Finished rows, stored in a file under the names of their measurements.

    Arguments:
        path: file; None stores nothing
        about: settings of the rows; a file with other settings is refused
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path, self.content = path, {"about": about, "rows": {}}
        if path is not None and path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
            if self.content["about"] != about:
                raise SystemExit(
                    f"--results {path}: written with other settings or on another device; move it"
                )

    def get(self, key: str) -> Any:
        return self.content["rows"].get(key)

    def put(self, key: str, lines: Any) -> None:
        from fairseq_deepnet.records import write_json

        self.content["rows"][key] = lines
        if self.path is not None:
            write_json(self.path, self.content)
