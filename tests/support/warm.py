"""The project's commands without their start of three seconds, which is torch's and fairseq's.

One process beside each worker has imported both; a command is forked from it. `commands` makes a
folder of stand-ins for `python`, `deepnet` and fairseq's commands: put first on PATH, they hand
their arguments, environment, folder and files to that process, pass signals on, and end with the
same status. What is no such command, or has settings that Python reads at its start, is started
afresh, and so is everything with WARM=0. Not for tests of how processes start, are found and end.
"""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import json
import os
import random
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ENTRIES = {
    "python": "fairseq_deepnet.cli",
    "deepnet": "fairseq_deepnet.cli",
    "fairseq-train": "fairseq_cli.train:cli_main",
    "fairseq-generate": "fairseq_cli.generate:cli_main",
    "fairseq-validate": "fairseq_cli.validate:cli_main",
}
"""What a command runs: a module, or a function of one."""

STAND_IN = """\
#!{python} -IS
import json, os, signal, socket, sys

name, words = os.path.basename(sys.argv[0]), sys.argv[1:]


{settings}

def afresh():
    os.execv(os.path.join({bin!r}, name), [name, *words])


if (name == "python" and words[:2] != ["-m", "fairseq_deepnet.cli"]) or settings() != {here!r}:
    afresh()
line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
try:
    line.connect({address!r})
except OSError:
    afresh()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: line.sendall(bytes([number])))
request = {{"name": name, "words": words, "folder": os.getcwd(), "environment": dict(os.environ)}}
text = json.dumps(request).encode()
socket.send_fds(line, [len(text).to_bytes(4, "big")], [0, 1, 2])
line.sendall(text)
status = int.from_bytes(line.recv(4), "big", signed=True)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


def settings() -> dict[str, str]:
    """Return what Python reads at its start and a fork cannot change; stand-ins call it too."""
    return {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("PYTHON", "LC_", "LANG", "OMP_"))
        and key not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }


@functools.cache
def commands() -> Path:
    """Make the folder of stand-ins; the process behind them ends with this one."""
    folder = Path(tempfile.mkdtemp(prefix="warm"))
    atexit.register(shutil.rmtree, folder)
    code = {"settings": inspect.getsource(settings), "here": settings()}
    address = folder / "socket"
    where = {"python": sys.executable, "bin": str(Path(sys.executable).parent)}
    for name in ENTRIES:
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        text = STAND_IN.format(**where, address=str(address), **code)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, __file__, str(address)],
        stdin=subprocess.PIPE,  # whose end is its own
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(process.kill)
    return folder / "bin"


def serve(address: str) -> dict[str, Any]:
    """Wait for commands; return only in a process that is to run one, with its request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    import fairseq.models
    import fairseq.tasks
    import fairseq.trainer  # noqa: F401

    gc.freeze()

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()
        line, _ = listener.accept()
        if os.fork():
            line.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, files, _, _ = socket.recv_fds(line, 4, 3)
        text = b""
        while len(text) < int.from_bytes(size, "big"):
            text += line.recv(1 << 16)
        child = os.fork()
        if child:
            watch(line, child)
        line.close()
        os.setpgid(0, 0)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return dict(json.loads(text))


def watch(line: socket.socket, child: int) -> None:
    """Pass signals on to a command, and its status back; it dies with the one who asked for it."""
    ended = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([line, ended], [], [])
        if ended in ready:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            line.sendall(status.to_bytes(4, "big", signed=True))
            os._exit(0)
        asked = line.recv(1)
        os.kill(child, asked[0] if asked else signal.SIGKILL)
        if not asked:
            os._exit(0)


def run(request: dict[str, Any]) -> None:
    """Do what the command does."""
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    random.seed()
    sys.path[:0] = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    name, words = request["name"], request["words"]
    module, _, function = ENTRIES[name].partition(":")
    sys.argv = [name, *words[2 if name == "python" else 0 :]]
    if not function:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    import importlib
    import logging

    logging.root.handlers.clear()  # a command sets them up before it imports fairseq
    sys.exit(getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    sys.path.pop(0)
    run(serve(sys.argv[1]))
