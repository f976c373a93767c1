"""Errors in one line if the user can fix them, and with a traceback otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str, program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"import sys; sys.argv = [{program!r}]; {code}"]
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.parametrize(
    ("raised", "status", "last"),
    [
        (
            "OSError(28, 'No space left on device', 'out.pt')",
            2,
            "No space left on device: 'out.pt'",
        ),
        ("OSError(28, 'No space left on device')", 2, "No space left on device"),
        ("ConnectionResetError(104, 'Connection reset by peer')", 1, "reset by peer"),
        ("KeyError('a mistake of ours')", 1, "KeyError: 'a mistake of ours'"),
    ],
)
def test_only_an_error_that_names_a_file_or_a_full_disk_loses_its_traceback(
    raised: str, status: int, last: str
) -> None:
    code = f"import fairseq_deepnet.errors as e; e.show_in_one_line(); raise {raised}"
    result = run(code, "/usr/bin/fairseq-train")
    assert result.returncode == status
    assert result.stderr.rstrip().endswith(last)
    assert ("Traceback" in result.stderr) == (status == 1)


def test_a_program_that_imports_the_package_keeps_its_own_hook() -> None:
    code = """
from fairseq_deepnet import models
assert sys.excepthook is sys.__excepthook__
raise FileNotFoundError("my own error")"""
    result = run(code, "mine.py")
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("FileNotFoundError: my own error")
    assert "Traceback" in result.stderr
