"""Lets `--user-dir` name the folder of this project as well as the package in it.

fairseq imports the folder that --user-dir names, under its name, and a clone has the package's name
as a rule: without this file Python would take the clone for an empty namespace package, and
fairseq-train would know none of our architectures.
"""

import importlib
import sys
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent

if __name__ == "fairseq_deepnet":
    # the package takes the place of this module, whose import then gives the package
    del sys.modules[__name__]
sys.path.insert(0, str(_PROJECT))
importlib.import_module("fairseq_deepnet.models")
