"""Memory of a plan, compared with live tensors in fairseq's Trainer."""

import pytest

from benchmarks import plan_accuracy
from benchmarks.plan_accuracy import Shape

CHUNKED = ("--criterion", "chunked_label_smoothed_cross_entropy")


@pytest.mark.parametrize(
    "shape",
    [
        Shape("activations", 4, 64, 256, 2, 200, 512),
        Shape("activations", 4, 64, 256, 2, 200, 512, options=("--checkpoint-activations",)),
        Shape("vocabulary", 1, 64, 128, 2, 4000, 256),
        Shape("vocabulary", 1, 64, 128, 2, 4000, 512, options=CHUNKED),
        Shape("vocabulary", 1, 64, 128, 2, 4000, 512, options=(*CHUNKED, "--bf16")),
        Shape("weights", 2, 128, 512, 4, 2000, 64, options=("--optimizer", "fused_adam")),
        Shape("weights", 2, 128, 512, 4, 2000, 64, options=("--update-freq", "2")),
        Shape("embeddings", 1, 128, 128, 4, 4000, 32, options=("--update-freq", "2")),
        Shape("adafactor", 2, 128, 512, 4, 2000, 64, options=("--optimizer", "adafactor")),
    ],
    ids=lambda shape: f"{shape.name} {' '.join(shape.options)}".strip(),
)
def test_the_peak_of_live_tensors_is_estimated(shape: Shape) -> None:
    alive = plan_accuracy.measure(shape, "cpu")
    memory = plan_accuracy.estimated(shape, "cpu").memory
    assert memory.peak - memory.host == pytest.approx(alive, rel=0.04)
