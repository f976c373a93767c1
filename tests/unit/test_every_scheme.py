"""Training, checkpoints and logging of models with each scheme."""

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models import build_model as fairseq_build_model
from torch import Tensor

from fairseq_deepnet.checkpoints import save_checkpoint
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.schemes import SCHEMES
from fairseq_deepnet.tools.standalone import VocabularyTask
from tests.support.models import SYMBOLS, VARIANTS, build_model, loss_of, matrix, small, stir

Batch = dict[str, Tensor]


def step(model: Any, batch: Batch) -> float:
    """Perform one SGD update and return the loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser.zero_grad()
    loss = loss_of(model.train(), batch)
    loss.backward()
    optimiser.step()
    return loss.item()


@pytest.fixture(params=matrix(VARIANTS, whole=True), ids=lambda v: "-".join(filter(None, v)))
def chosen(request: pytest.FixtureRequest) -> dict[str, str | None]:
    scheme, variant = request.param
    return {"residual_scheme": scheme, "scheme_variant": variant}


@pytest.mark.parametrize("ties", [{}, {"share_all_embeddings": True}], ids=["untied", "tied"])
def test_every_parameter_has_a_gradient_after_three_updates(
    chosen: dict[str, Any], ties: dict[str, bool], batch: Batch
) -> None:
    """R-Fixup needs one update each for the vocabulary projection, the decoder's zero maps and the
    encoder's, before the encoder's keys have gradients.
    """
    model = build_model(**chosen, **ties)
    for _ in range(3):
        step(model, batch)
    loss_of(model, batch).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # Softmax ignores a key's bias, which adds the same number to all scores of a query.
        if not name.endswith("k_proj.bias"):
            assert parameter.grad.any(), name


def test_18_layers_per_side_have_finite_initial_logits_and_gradients(
    chosen: dict[str, Any], batch: Batch
) -> None:
    model = build_model(encoder_layers=18, decoder_layers=18, **chosen).eval()
    with torch.no_grad():  # Admin is evaluated without and with a profile
        assert loss_of(model, batch).item() < 10  # log(64) is 4.2
        assert loss_of(model.train(), batch).item() < 10
    stir(model)  # otherwise branches multiplied by 0 have no gradient
    loss_of(model, batch).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


class SmallTask(VocabularyTask):
    """Minimal task for fairseq's checkpoint loader."""

    def __init__(self) -> None:
        super().__init__(4 + SYMBOLS)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        return fairseq_build_model(cfg, self, from_checkpoint)


@pytest.mark.parametrize("ties", [{}, {"share_all_embeddings": True}], ids=["untied", "tied"])
def test_fairseqs_loader_restores_a_scheme_completely(
    chosen: dict[str, Any], ties: dict[str, bool], batch: Batch, tmp_path: Path
) -> None:
    args = Namespace(arch="deepnet_transformer", **small(**chosen, **ties))
    ARCH_CONFIG_REGISTRY["deepnet_transformer"](args)
    model = SmallTask().build_model(args)
    stir(model)
    for _ in range(2):
        step(model, batch)
    state = {
        **{"args": None, "cfg": {"model": args, "task": {}}, "model": model.state_dict()},
        "optimizer_history": [
            {"num_updates": 2, "optimizer_name": "sgd", "lr_scheduler_state": {}}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    save_checkpoint(state, tmp_path / "checkpoint.pt")
    (again,), loaded, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "checkpoint.pt")], task=SmallTask(), strict=True
    )
    assert loaded["model"].residual_record == args.residual_record
    variant = SCHEMES[chosen["residual_scheme"]].check_variant(chosen["scheme_variant"])
    assert args.residual_record["variant"] == variant
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert torch.equal(again.eval()(**batch)[0], model.eval()(**batch)[0])
    # the next update is the same
    assert step(again, batch) == step(model, batch)
    assert torch.equal(again.eval()(**batch)[0], model.eval()(**batch)[0])


def test_learned_residuals_have_names_for_the_log(chosen: dict[str, Any], batch: Batch) -> None:
    """Every value from `learned` must change with an update."""
    model = build_model(**chosen)
    stir(model)
    names = {
        "admin": {"residual_weight"},
        "admin-log": {"residual_weight"},
        "rezero": {"branch_weight"},
        "r-fixup": {"branch_weight"},
        "dlcl": {"combination_newest"},
        "normformer": {"residual_weight"} if chosen["scheme_variant"] == "resscale" else set(),
    }
    model.train()(**batch)
    for stack in (model.encoder, model.decoder):
        residuals = [r for layer in stack.layers for r in layer.residuals.values()]
        learners = [*residuals, *filter(None, [stack.combination])]
        before = [{k: v.detach().clone() for k, v in m.learned().items()} for m in learners]
        step(model, batch)
        logged = set()
        for module, earlier in zip(learners, before, strict=True):
            for name, value in module.learned().items():
                logged.add(name)
                assert not torch.equal(value, earlier[name]), name
        assert logged == names.get(chosen["residual_scheme"], set())


@pytest.mark.parametrize("option", ["encoder_layerdrop", "decoder_layers_to_keep"])
def test_layers_may_be_dropped_unless_the_scheme_needs_all(
    chosen: dict[str, Any], option: str, batch: Batch
) -> None:
    """Admin's chain and DLCL's matrix include every layer, and LayerNorm Scaling counts layers."""
    asked = {option: 0.5 if option.endswith("drop") else "0"}
    if chosen["residual_scheme"] in ("admin", "dlcl", "ln-scaling"):
        name = option.replace("_", "-")
        with pytest.raises(ConfigurationError, match=f"--{name} .* needs every layer"):
            build_model(**chosen, **asked)
    else:
        assert build_model(**chosen, **asked).eval()(**batch)[0].isfinite().all()


@pytest.mark.parametrize("name", [name for name in SCHEMES if SCHEMES[name].layer_drop])
def test_an_update_without_any_layer_is_finite(name: str, batch: Batch) -> None:
    """LayerDrop draws independently for each layer and may drop all layers of a stack."""
    drop = {"encoder_layerdrop": 1.0, "decoder_layerdrop": 1.0, "log_interval": 1}
    model = build_model(residual_scheme=name, **drop)
    assert math.isfinite(step(model, batch))
    state = torch.get_rng_state()
    model.set_num_updates(0)
    assert torch.equal(torch.get_rng_state(), state), "logging has drawn layers to drop"
