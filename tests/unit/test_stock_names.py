"""Our counterparts of fairseq's criterions and optimisers have its class names and options."""

import pytest
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY, OPTIMIZER_REGISTRY

import fairseq_deepnet.models  # noqa: F401  (registers ours)
from fairseq_deepnet.stock_names import STOCK_NAMES, in_stock_names

CLASSES = {**CRITERION_REGISTRY, **OPTIMIZER_REGISTRY}
OPTIONS = {**CRITERION_DATACLASS_REGISTRY, **OPTIMIZER_DATACLASS_REGISTRY}


@pytest.mark.parametrize(("ours", "stock"), STOCK_NAMES.items(), ids=STOCK_NAMES)
def test_class_name_and_options_equal_fairseqs(ours: str, stock: str) -> None:
    """fairseq's trainer compares class names when it loads a checkpoint."""
    assert CLASSES[ours] is not CLASSES[stock]
    assert CLASSES[ours].__name__ == CLASSES[stock].__name__
    assert OPTIONS[ours] is OPTIONS[stock]


def test_only_criterion_and_optimiser_are_renamed() -> None:
    options = {
        "criterion": "chunked_cross_entropy",
        "optimizer": "sgd",
        "restore_file": "fused_adam",
    }
    assert in_stock_names(options) == options | {"criterion": "cross_entropy"}
