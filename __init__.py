"""Entry point for fairseq if `--user-dir` names the project's folder instead of the package.

fairseq imports the --user-dir folder under its own name, and a clone usually has the package's
name. Without this file, Python would treat the clone as an empty namespace package, and
fairseq-train would not find our architectures.
"""

import importlib
import sys
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent

if __name__ == "fairseq_deepnet":
    # replace this module by the package, so that importing it returns the package
    del sys.modules[__name__]
sys.path.insert(0, str(_PROJECT))
importlib.import_module("fairseq_deepnet.models")
