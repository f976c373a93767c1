"""A browser without a window and without a network, for pages that the project writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # no name has an address, and the proxy that all else must pass does not answer
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
    "--enable-logging=stderr",
    "--window-size=1300,900",
    "--virtual-time-budget=60000",
)


@dataclass(frozen=True)
class Page:
    """What a browser made of a page: the document after its scripts ran, and their complaints."""

    dom: str
    complaints: tuple[str, ...]


def find_browser() -> str:
    """The browser's path; the test is skipped where there is none."""
    for name in _NAMES:
        found = shutil.which(name)
        if found:
            return found
    pytest.skip(f"needs a browser: none of {', '.join(_NAMES)} is on PATH")


def open_page(file: Path, profile: Path) -> Page:
    """Open a file, let its scripts run and come back with the document.

    Arguments:
        profile: a folder that is not there yet
    """
    command = [find_browser(), *_OPTIONS, f"--user-data-dir={profile}", "--dump-dom", file.as_uri()]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=180)
    told = re.findall(r"CONSOLE\S* (.*)", result.stderr)
    bad = [line for line in told if re.search(r"Uncaught|Error|Refused|Failed", line)]
    return Page(result.stdout, tuple(bad))
