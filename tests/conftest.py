"""Settings and fixtures of all tests: one thread, the root folder, corpora, fake commands."""

import os
import signal
import sys
from collections.abc import Iterator

# This must precede the import of torch. The workers of pytest-xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest

from fairseq_deepnet import cli
from tests.support.shell import ROOT, FakeBin, Refused

SHARED = ROOT.parent / "shared" / "data"

# Background processes ignore SIGINT, processes under nohup ignore SIGHUP, and scripts inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real corpora; skip the test if the folder is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs real corpora in ../shared/data")
    return SHARED


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder of one language pair, which tests do not change."""
    from tests.support.runs import make_data  # imports torch, unlike the tests of scripts

    return make_data(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that calls `deepnet WORDS`, which must fail with the error it returns."""

    def call(*words: object) -> str:
        capsys.readouterr()
        assert cli.main([str(word) for word in words]) == 2
        output, errors = capsys.readouterr()
        assert "Traceback" not in errors
        (error,) = [line for line in errors.splitlines() if "error: " in line]
        assert (output, errors.splitlines()[-1]) == ("", error)
        return error

    return call


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Destroy the process group after the test and restore the exception hook."""
    from tests.support.sharded_process import leave_group

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield
    leave_group()


@pytest.fixture
def fake_bin(tmp_path: Path) -> FakeBin:
    """Return fake commands that record their arguments: `run_script(..., path=fake_bin.path())`."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    return FakeBin(folder)
