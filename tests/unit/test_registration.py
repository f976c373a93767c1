"""Registration of models, criterions and optimisers with fairseq."""

import subprocess
import sys

# the package is already imported, so fairseq does not import the user-dir
CODE = """
from fairseq_deepnet.tools import fairseq_options
fairseq_options.parse_generation(["DATA", "--path", "x.pt"])
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
names = {"deepnet_transformer", "deepnet_transformer_lm", "deepnet_masked_lm"}
assert names <= set(ARCH_MODEL_REGISTRY)
assert "chunked_label_smoothed_cross_entropy" in CRITERION_REGISTRY
assert "fused_adam" in OPTIMIZER_REGISTRY
"""


def test_translation_registers_everything() -> None:
    process = subprocess.run([sys.executable, "-c", CODE], capture_output=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr
