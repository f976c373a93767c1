"""When the package tells fairseq of what it holds."""

import subprocess
import sys

import pytest

from fairseq_deepnet import is_translate


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/usr/bin/python /opt/bin/deepnet translate model", True),
        ("python -X importtime -m fairseq_deepnet.cli translate model", True),
        ("python /opt/bin/deepnet export run", False),
        ("python -m fairseq_deepnet.cli evaluate translate", False),
        ("python /opt/bin/fairseq-train data --user-dir fairseq_deepnet", False),
        ("python", False),
    ],
    ids=["installed", "module", "export", "evaluate", "fairseq", "nothing"],
)
def test_only_the_command_that_translates_registers_later(words: str, expected: bool) -> None:
    assert is_translate(words.split()) is expected


def test_importing_the_package_registers_everything_with_fairseq() -> None:
    script = (
        "import fairseq_deepnet\n"
        "from fairseq.criterions import CRITERION_REGISTRY\n"
        "from fairseq.models import ARCH_MODEL_REGISTRY\n"
        "from fairseq.optim import OPTIMIZER_REGISTRY\n"
        "assert 'deepnet_transformer' in ARCH_MODEL_REGISTRY\n"
        "assert 'deepnet_transformer_lm' in ARCH_MODEL_REGISTRY\n"
        "assert 'deepnet_masked_lm' in ARCH_MODEL_REGISTRY\n"
        "assert 'chunked_label_smoothed_cross_entropy' in CRITERION_REGISTRY\n"
        "assert 'fused_adam' in OPTIMIZER_REGISTRY\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8")
    assert found.returncode == 0, found.stderr
