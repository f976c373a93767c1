"""Nodes that share a run folder: they join what they agree with, and say what they do not."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fairseq_deepnet.tools.training import nodes
from fairseq_deepnet.tools.training.fallbacks import FallbackState, Pending


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.json").write_text("{}", encoding="utf-8")
    return tmp_path / "data"


def join(run: Path, plan: dict[str, object], complete: bool = False) -> bool:
    return nodes.wait_to_join(run, plan, lambda: complete, seconds=0.05) is not None


def test_a_node_joins_a_plan_that_is_its_own(tmp_path: Path, data: Path) -> None:
    plan = nodes.facts(["fairseq-train", "--lr", "1"], data, 2)
    nodes.announce(tmp_path, plan)
    assert join(tmp_path, nodes.facts(["fairseq-train", "--lr", "1"], data, 2))


def test_a_node_waits_for_the_plan(tmp_path: Path, data: Path) -> None:
    plan = nodes.facts(["fairseq-train"], data, 2)
    later = threading.Timer(0.2, nodes.announce, [tmp_path, plan])
    later.start()
    began = time.monotonic()
    assert nodes.wait_to_join(tmp_path, plan, lambda: False, seconds=30)
    assert time.monotonic() - began >= 0.15
    later.join()


def test_a_plan_that_differs_is_named_in_what_differs(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.announce(tmp_path, nodes.facts(["fairseq-train", "--lr", "1"], data, 2))
    (data / "corpus.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="node 0 trains something else") as caught:
        join(tmp_path, nodes.facts(["fairseq-train", "--lr", "2"], data, 4))
    message = str(caught.value)
    assert "nodes 2 there, 4 here" in message
    assert "corpus_sha256" in message
    assert "options ['1'] there, ['2'] here" in message
    assert "versions" not in message
    assert "waiting: node 0 trains something else" in capsys.readouterr().err


def test_the_plan_of_a_start_before_the_last_checkpoint_is_not_joined(
    tmp_path: Path, data: Path
) -> None:
    plan = nodes.facts(["fairseq-train"], data, 2)
    nodes.announce(tmp_path, plan)  # by a node 0 that was killed
    last = tmp_path / "checkpoints" / "checkpoint_last.pt"
    last.parent.mkdir()
    last.write_bytes(b"1")
    with pytest.raises(ValueError, match="of an earlier start"):
        join(tmp_path, plan)
    nodes.announce(tmp_path, plan)
    assert join(tmp_path, plan)
    last.write_bytes(b"12")
    with pytest.raises(ValueError, match="of an earlier start"):
        join(tmp_path, plan)


def test_without_a_plan_storage_that_is_not_shared_is_the_likely_cause(
    tmp_path: Path, data: Path
) -> None:
    plan = nodes.facts(["fairseq-train"], data, 2)
    with pytest.raises(ValueError, match=r"no nodes\.json .* storage that all nodes share"):
        join(tmp_path, plan)
    nodes.announce(tmp_path, plan)
    nodes.withdraw(tmp_path)
    with pytest.raises(ValueError, match=r"no nodes\.json"):
        join(tmp_path, plan)


def test_there_is_nothing_to_join_in_a_run_that_is_complete(tmp_path: Path, data: Path) -> None:
    assert not join(tmp_path, nodes.facts(["fairseq-train"], data, 2), complete=True)


def test_after_a_divergence_the_others_do_as_node_0_has_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="storage that all nodes share"):
        nodes.wait_for_fallback(tmp_path, 0, 2, seconds=0.05)
    taken = FallbackState(1, {"lr": "0.1"}, pending=Pending("diverged_1", 9, "c.pt"))
    taken.write(tmp_path)
    with pytest.raises(ValueError, match=r"no fallback\.json of node 0"):  # not rolled back yet
        nodes.wait_for_fallback(tmp_path, 0, 2, seconds=0.05)
    taken.pending = None
    taken.write(tmp_path)
    assert nodes.wait_for_fallback(tmp_path, 0, 2, seconds=30) == taken
    taken.exhausted = 2
    taken.write(tmp_path)
    assert nodes.wait_for_fallback(tmp_path, 1, 2, seconds=30) is None
