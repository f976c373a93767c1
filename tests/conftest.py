"""What all tests share: one thread each, the project's root, the real corpora, fake commands."""

import os
import signal

# Before torch is imported: the workers of pytest-xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin

SHARED = ROOT.parent / "shared" / "data"

# A run that was started in the background ignores Ctrl-C, one under nohup the end of its terminal,
# and so would every script it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs real corpora in ../shared/data")
    return SHARED


@pytest.fixture
def fake_bin(tmp_path: Path) -> FakeBin:
    """Fake commands that record their arguments: `run_script(..., path=fake_bin.path())`."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    return FakeBin(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_shared") and not SHARED.is_dir():
        pytest.skip("needs real corpora in ../shared/data")
