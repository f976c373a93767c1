"""The project's commands without the three seconds in which torch and fairseq are imported.

A server process beside each worker has imported both and forks the commands. `commands` writes a
folder of stand-ins for `python`, `deepnet` and fairseq's commands. First on PATH, the stand-ins
pass their arguments, environment, folder and files to the server, forward signals, and exit with
the command's status. Other uses of python, commands with settings that Python reads at its start,
and all commands with WARM=0 start normally. Tests of process start and end do not use this module.
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
"""Module, or function of a module, that each command runs."""

STAND_IN = """\
#!{python} -IS
import json, os, signal, socket, sys

name, words = os.path.basename(sys.argv[0]), sys.argv[1:]


{settings}

def start():
    os.execv(os.path.join({bin!r}, name), [name, *words])


if (name == "python" and words[:2] != ["-m", "fairseq_deepnet.cli"]) or settings() != {here!r}:
    start()
line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
try:
    line.connect({address!r})
except OSError:
    start()
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
    """Return the settings that Python reads only at its start; stand-ins call it too."""
    return {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("PYTHON", "LC_", "LANG", "OMP_"))
        and key not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }


@functools.cache
def commands() -> Path:
    """Write the folder of stand-ins; the process behind them ends with this process."""
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
        stdin=subprocess.PIPE,  # the server ends when this pipe closes
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(process.kill)
    return folder / "bin"


def serve(address: str) -> dict[str, Any]:
    """Wait for requests; return only in the process that runs a command, with its request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    import fairseq.models
    import fairseq.tasks
    import fairseq.trainer  # noqa: F401

    gc.freeze()

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watching processes
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
    """Forward signals to a command and return its status; kill it if its stand-in ends."""
    ended = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([line, ended], [], [])
        if ended in ready:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            line.sendall(status.to_bytes(4, "big", signed=True))
            os._exit(0)
        number = line.recv(1)
        os.kill(child, number[0] if number else signal.SIGKILL)
        if not number:
            os._exit(0)


def run(request: dict[str, Any]) -> None:
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

    logging.root.handlers.clear()  # a command sets up logging before it imports fairseq
    sys.exit(getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    sys.path.pop(0)
    run(serve(sys.argv[1]))
