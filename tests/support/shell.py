"""Functions that run the project's shell scripts, with fakes for slow commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.warm import commands

ROOT = Path(__file__).resolve().parents[2]
Refused = Callable[..., str]
"""Function of the fixture `refused`."""


def commands_path() -> str:
    """Return a PATH that begins with quick stand-ins for commands (see warm.py)."""
    real = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return os.pathsep.join(real if os.environ.get("WARM") == "0" else [str(commands()), *real])


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds; fail if it does not hold in time."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition never held"
        time.sleep(0.02)


class FakeBin:
    """A folder of fake commands, to be put first on PATH, which record their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.records = folder / "records"
        self.folder.mkdir()
        self.records.mkdir()

    def add(self, name: str, body: str = "", *, stdout: str = "", status: int = 0) -> Path:
        """Add a fake that runs `body` (bash), prints `stdout` and exits with `status`."""
        path = self.folder / name
        record = shlex.quote(str(self.records / name))
        path.write_text(
            "#!/bin/bash\n"
            f'printf "%s\\0" "$#" "$@" >>{record}\n'
            f"{body}\n"
            f"printf %s {shlex.quote(stdout)}\n"
            f"exit {status}\n",
            encoding="utf-8",
        )
        path.chmod(0o755)
        return path

    def calls(self, name: str) -> list[list[str]]:
        """Return the list of arguments of each call so far."""
        record = self.records / name
        fields = record.read_text(encoding="utf-8").split("\0")[:-1] if record.exists() else []
        calls = []
        while fields:
            end = 1 + int(fields[0])
            calls.append(fields[1:end])
            fields = fields[end:]
        return calls

    def path(self, *others: Path | str) -> str:
        """Return a PATH with the fakes and `others` (default: this Python and the real PATH)."""
        rest = others or (commands_path(),)
        return os.pathsep.join(map(str, (self.folder, *rest)))


def run_script(
    script: str | Path,
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    path: str | None = None,
    cwd: Path | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a script without set-up, and return its output.

    `script` is a name in scripts/ or an absolute path. `env` extends the environment, and `path`
    replaces PATH, which otherwise begins with the folder of this Python.
    """
    environment = {
        **os.environ,
        "DEEPNET_SKIP_SETUP": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": path or commands_path(),
        **(env or {}),
    }
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / script), *map(str, arguments)],
        env=environment,
        cwd=cwd or ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
