"""Registration of models, criterions and optimisers with fairseq."""

import subprocess
import sys

import pytest

NAMES = """
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
names = {"deepnet_transformer", "deepnet_transformer_lm", "deepnet_masked_lm"}
assert names <= set(ARCH_MODEL_REGISTRY)
assert "chunked_label_smoothed_cross_entropy" in CRITERION_REGISTRY
assert "fused_adam" in OPTIMIZER_REGISTRY
"""
USER_DIR = """
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir="fairseq_deepnet"))
"""


# the package is already imported, as in translation, so fairseq does not import the user-dir
GENERATION = """
from fairseq_deepnet.tools import fairseq_options
fairseq_options.parse_generation(["DATA", "--path", "x.pt"])
"""


@pytest.mark.parametrize("way", ["import fairseq_deepnet.models", USER_DIR, GENERATION])
def test_importing_the_models_registers_everything(way: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", way + NAMES], capture_output=True, encoding="utf-8"
    )
    assert process.returncode == 0, process.stderr
