"""The messages in docs/guides/troubleshooting.md exist in the code."""

from __future__ import annotations

import re
from pathlib import Path

import fairseq
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
OTHERS = {"invalid choice", "CUDA out of memory", "Killed", "No space left", "Weights only load"}
"""Messages of Python, torch and the system, which are not in our sources."""


def messages() -> list[str]:
    """Return the text between backticks in the first column of the page's tables."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "you see" not in line]
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row.split("|")[1])]


@pytest.fixture(scope="module")
def sources() -> str:
    """Our code and fairseq's, with literals across several lines joined."""
    files = [*(ROOT / "scripts").rglob("*.sh"), *(ROOT / "fairseq_deepnet").rglob("*.py")]
    package = Path(fairseq.__file__).parent
    files += [*package.glob("*.py"), *package.glob("data/*.py"), *package.glob("optim/*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\s*\\?\n\s*f?"', "", text)


@pytest.mark.parametrize("message", messages())
def test_an_explained_message_exists_in_the_code(message: str, sources: str) -> None:
    if not any(message.startswith(other) for other in OTHERS):
        assert message in sources


def test_versions_on_the_page_are_the_pins() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    script = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
    named = re.findall(r"[a-z][a-z0-9-]*(?:==|>=)[0-9][0-9.,<]*[0-9]", PAGE)
    assert len(named) > 4
    for requirement in named:
        assert f'"{requirement}"' in setup + script, requirement
