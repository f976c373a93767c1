"""When the package tells fairseq of what it holds."""

import subprocess
import sys

import pytest

HELD = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
held = {"deepnet_transformer", "deepnet_transformer_lm", "deepnet_masked_lm"}
assert held <= set(ARCH_MODEL_REGISTRY)
assert "chunked_label_smoothed_cross_entropy" in CRITERION_REGISTRY
assert "fused_adam" in OPTIMIZER_REGISTRY
"""
USER_DIR = """
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir="fairseq_deepnet"))
"""


# the package is there already, as in a process that translates: fairseq then imports no user-dir
GENERATION = """
from fairseq_deepnet.tools import fairseq_options
fairseq_options.parse_generation(["DATA", "--path", "x.pt"])
"""


@pytest.mark.parametrize("way", ["import fairseq_deepnet.models", USER_DIR, GENERATION])
def test_models_register_everything_where_fairseq_looks_for_it(way: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", way + HELD], capture_output=True, encoding="utf-8"
    )
    assert found.returncode == 0, found.stderr
