"""A user-dir that sends fairseq-train signals while it makes a certain update: no time to guess."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.support.shell import ROOT

_RIG = """
    import os, signal, sys, time
    sys.path.insert(0, {root!r})
    import torch
    {before}
    import fairseq_deepnet.models
    from fairseq_deepnet import preemption
    from fairseq.trainer import Trainer

    def during(update, act, rank=None, method="train_step"):
        original = getattr(Trainer, method)
        def wrapped(self, *args, **kwargs):
            if self.get_num_updates() == update - 1 and rank in (None, self.data_parallel_rank):
                act()
            return original(self, *args, **kwargs)
        setattr(Trainer, method, wrapped)

    def kill(number=signal.SIGTERM, process=None):
        os.kill(process or os.getpid(), number)
        heard()

    def kill_at_exit():
        # while Python ends, it gives signals back to the system unless they are ignored
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM)
        print("signalled at exit", flush=True)

    def heard():
        "Wait for the handler."
        while preemption.signalled() is None:
            time.sleep(0.01)
"""


def rig(folder: Path, *lines: str, before: str = "") -> Path:
    """Make a user-dir with the plugin and these lines of Python.

    They may use `during(update, act, rank)`, `kill(signal, process)` and `heard()`.
    """
    folder.mkdir()
    text = textwrap.dedent(_RIG).format(root=str(ROOT), before=before)
    (folder / "__init__.py").write_text("\n".join((text, *lines, "")), encoding="utf-8")
    return folder
