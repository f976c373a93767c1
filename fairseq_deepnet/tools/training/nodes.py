"""Several nodes, one run folder: node 0 writes the records, the others check that they agree.

Node 0 leaves nodes.json in the run folder while it trains. The other nodes wait for it and compare
what it says with their own plan before they join; so they also find out that the folder is not on
storage that all nodes share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from fairseq_deepnet.files import ROOT, say, shown, write_json
from fairseq_deepnet.provenance import sha256, versions
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.training import fallbacks
from fairseq_deepnet.tools.training.fallbacks import FallbackState

PLAN: Final = "nodes.json"
CONTINUES: Final = "continues"
"""In it: the checkpoint from elsewhere that the run began with, where it goes on from its own."""
_LAST: Final = "checkpoint_last"
"""In it: size and time of checkpoint_last.pt, by which a plan of an earlier start is known."""
Answer = TypeVar("Answer")


def facts(command: list[str], data: Path, nodes: int) -> dict[str, Any]:
    """Return what must be the same on every node: command, data, versions.

    Folders may be mounted elsewhere on another node as long as the command names them alike.
    """
    found = versions()
    return {
        "command": [word.replace(str(ROOT), "PROJECT") for word in command],
        "corpus_sha256": sha256(data / "corpus.json"),
        "nodes": nodes,
        "versions": {name: found[name] for name in ("fairseq_deepnet", "fairseq-fixed", "torch")},
    }


def announce(run: Path, plan: dict[str, Any]) -> None:
    """Let the other nodes join (node 0)."""
    write_json(run / PLAN, plan | {_LAST: _last(run)})


def withdraw(run: Path) -> None:
    """Say that there is nothing to join (any more)."""
    (run / PLAN).unlink(missing_ok=True)


def _last(run: Path) -> str:
    try:
        found = (run / "checkpoints" / "checkpoint_last.pt").stat()
    except FileNotFoundError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _mismatch(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return what differs between node 0's plan and this node's; empty if nothing."""
    found = [
        f"{key} {theirs.get(key)} there, {ours[key]} here"
        for key in ("nodes", "corpus_sha256", "versions")
        if theirs.get(key) != ours[key]
    ]
    there, here = theirs.get("command", []), ours["command"]
    if there != here:
        only_there = [word for word in there if word not in here]
        only_here = [word for word in here if word not in there]
        found.append(f"options {only_there} there, {only_here} here")
    return "; ".join(found)


def wait_to_join(
    run: Path, ours: dict[str, Any], is_complete: Callable[[], bool], seconds: float
) -> dict[str, Any] | None:
    """Wait until node 0 trains what this node is to train, and return what node 0 says; None where
    the run is complete.

    A plan that differs may be left from an earlier start: it is said, and the wait goes on.

    Raises ValueError after `seconds`.
    """
    reason, remedy = "", "start node 0 with the same RUN, on storage that all nodes share"

    def joined() -> tuple[dict[str, Any] | None] | None:
        nonlocal reason
        try:
            theirs = read_record(run / PLAN)
        except FileNotFoundError:
            return (None,) if is_complete() else None
        different, hindrance = _mismatch(theirs, ours), ""
        if different:
            hindrance = f"node 0 trains something else in {shown(run)}: {different}"
        elif theirs.get(_LAST) != _last(run):
            hindrance = f"{PLAN} in {shown(run)} is of an earlier start; {remedy}"
        if hindrance and hindrance != reason:
            say(f"waiting: {hindrance}")
        reason = hindrance or reason
        return None if hindrance else (theirs,)

    answer = _wait(joined, seconds)
    if answer is None:
        lacking = f"no {PLAN} of node 0 in {shown(run)} after {seconds:.0f} s: {remedy}"
        raise ValueError(reason or lacking)
    return answer[0]


def wait_for_fallback(
    run: Path, step: int, steps: int, seconds: float, ended: Callable[[], bool] = lambda: False
) -> FallbackState | None:
    """Wait until node 0 has rolled the run back; None where it ends, as no fallback is left.

    Args:
        step: fallbacks taken before
        steps: of --fallbacks
        ended: True once there is nothing to wait for, as this node has been signalled

    Raises ValueError after `seconds`.
    """

    def decided() -> tuple[FallbackState | None] | None:
        state = fallbacks.read(run)
        if state.step > step and state.pending is None:
            return (state,)
        return (None,) if state.exhausted >= steps or ended() else None

    answer = _wait(decided, seconds)
    if answer is None:
        raise ValueError(
            f"the training diverged, and no {fallbacks.NAME} of node 0 in {shown(run)} after"
            f" {seconds:.0f} s: it lies on storage that all nodes share, and node 0 must be at work"
        )
    return answer[0]


def _wait(ask: Callable[[], Answer | None], seconds: float) -> Answer | None:
    """Return the first answer that is one; None where none comes in time."""
    limit = time.monotonic() + seconds
    while (answer := ask()) is None and time.monotonic() < limit:
        time.sleep(min(0.5, seconds))
    return answer
