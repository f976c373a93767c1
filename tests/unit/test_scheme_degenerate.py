"""Each scheme against its formula, and against stock fairseq at its neutral values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_deepnet.schemes import SCHEMES, NormPlacement, PostNormResidual
from tests.support import reference
from tests.support.models import VARIANTS, assert_same_training, build_model, loss_of

Batch = dict[str, Tensor]
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def every_weight_moved(model: Any) -> Any:
    """Perturb all weights and return the model in evaluation mode, without Admin's profiling."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dtype.is_floating_point and not name.endswith("_float_tensor"):
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize(("scheme", "variant"), VARIANTS)
def test_a_model_computes_its_schemes_formula(
    scheme: str, variant: str | None, batch: Batch
) -> None:
    model = every_weight_moved(build_model(residual_scheme=scheme, scheme_variant=variant))
    real = batch["prev_output_tokens"].ne(1)
    actual, expected = model(**batch)[0], reference.logits(scheme, model, batch)
    torch.testing.assert_close(actual[real], expected[real], atol=1e-4, rtol=1e-4)


OWN = ("residuals.", "combination.", "_transform.")  # parts of the names that a scheme adds


def nothing(model: Any) -> None:
    """Do nothing, because a new model with this scheme is already neutral."""


def omega_one(model: Any) -> None:
    """Set admin-log's omega to 1, its value in Admin before profiling."""
    for name, parameter in model.named_parameters():
        if "residuals" in name:
            nn.init.ones_(parameter)


def only_newest_output(model: Any) -> None:
    """Make DLCL read only the newest output, without LayerNorm."""
    for stack in (model.encoder, model.decoder):
        nn.init.eye_(stack.combination.weight)
        stack.combination.norms = nn.ModuleList(nn.Identity() for _ in stack.layers)


def no_further_norms(model: Any) -> None:
    """Remove NormFormer's additional norms; its factors are initially 1."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.post_activation_transform = None
        for residual in layer.residuals.values():
            if hasattr(residual, "branch_norm"):
                residual.branch_norm = nn.Identity()


def no_bottom(model: Any) -> None:
    """Replace B2T's residuals by Post-LN's."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for name in layer.residuals:
            layer.residuals[name] = PostNormResidual(1.0)


def second_stream_unread(model: Any) -> None:
    """Make ResiDual's last LayerNorms return 0."""
    for stack in (model.encoder, model.decoder):
        nn.init.zeros_(stack.output_transform.norm.weight)


def no_inner_norms(model: Any) -> None:
    """Remove the norms inside Sub-LN's branches."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.post_activation_transform = layer.self_attn.head_transform = None


def only_norms_before_branches(model: Any) -> None:
    """Remove Peri-LN's norms after branches and embeddings."""
    no_further_norms(model)
    for stack in (model.encoder, model.decoder):
        stack.layernorm_embedding = None


def all_scales_one(model: Any) -> None:
    """Give all layers of LayerNorm Scaling the first layer's scale."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        for residual in layer.residuals.values():
            residual.scale = 1.0


# scheme: equivalent stock placement, and a function that sets the neutral values
NEUTRAL: dict[str, tuple[str, Callable[[Any], None]]] = {
    "deepnorm": ("post", nothing),  # with alpha 1
    "post-ln": ("post", nothing),
    "post-ln-init": ("post", nothing),
    "ds-init": ("post", nothing),
    "admin": ("post", nothing),
    "admin-log": ("post", omega_one),
    "b2t": ("post", no_bottom),
    "resi-dual": ("post", second_stream_unread),
    "branchnorm": ("post", nothing),  # after its growth
    "pre-ln": ("pre", nothing),
    "dlcl": ("pre", only_newest_output),
    "normformer": ("pre", no_further_norms),
    "sub-ln": ("pre", no_inner_norms),
    "peri-ln": ("pre", only_norms_before_branches),
    "ln-scaling": ("pre", all_scales_one),
}
LAYER_SHAPES: list[dict[str, Any]] = [
    {},
    {"share_all_embeddings": True, "activation_fn": "gelu"},
    {"encoder_embed_dim": 48, "encoder_layers": 1, "decoder_layers": 4},
]


def test_every_scheme_with_layer_norm_is_in_the_table() -> None:
    assert set(NEUTRAL) == {n for n, s in SCHEMES.items() if s.norm is not NormPlacement.NONE}


@pytest.mark.parametrize("options", LAYER_SHAPES, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize(("scheme", "variant"), [v for v in VARIANTS if v[0] in NEUTRAL])
def test_a_scheme_at_its_neutral_values_is_stock_fairseq(
    scheme: str, variant: str | None, options: dict[str, Any], batch: Batch
) -> None:
    placement, neutralise = NEUTRAL[scheme]
    flags = {f"{side}_normalize_before": placement == "pre" for side in ("encoder", "decoder")}
    stock = build_model("transformer", **flags, **options).eval()
    chosen = {"residual_scheme": scheme, "scheme_variant": variant}
    if scheme == "deepnorm":
        depths = [options.get("encoder_layers", 3), options.get("decoder_layers", 2)]
        alphas = {"encoder": 1.0, "decoder": 1.0}
        record = {"scheme": scheme, "depths": depths, "alphas": alphas, "variant": variant}
        chosen["residual_record"] = record
    ours = build_model(**chosen, seed=2, **options).eval()
    neutralise(ours)
    loaded = ours.load_state_dict(stock.state_dict(), strict=False)
    assert not loaded.unexpected_keys
    assert all(any(part in name for part in OWN) for name in loaded.missing_keys)
    real = batch["prev_output_tokens"].ne(1)
    torch.testing.assert_close(ours(**batch)[0][real], stock(**batch)[0][real], **CLOSE)
    assert_same_training(ours, stock, lambda model: loss_of(model, batch))


TAKES_STOCK_INIT = [name for name, scheme in SCHEMES.items() if scheme.stock_initialisation]


@pytest.mark.parametrize("scheme", TAKES_STOCK_INIT)
def test_one_seed_draws_fairseqs_weights_with_any_scheme(scheme: str) -> None:
    pre = SCHEMES[scheme].norm is NormPlacement.PRE
    flags = {"encoder_normalize_before": pre, "decoder_normalize_before": pre}
    stock = build_model("transformer", **flags).state_dict()
    ours = build_model(residual_scheme=scheme, init="stock").state_dict()
    no_norm = SCHEMES[scheme].norm is NormPlacement.NONE
    assert {n for n in stock if n not in ours} == {n for n in stock if no_norm and "_norm" in n}
    for name in stock.keys() & ours.keys():
        assert torch.equal(ours[name], stock[name]), name


@torch.no_grad()
def test_resi_duals_scale_only_prevents_overflow_of_the_second_stream(batch: Batch) -> None:
    plain, scaled = (
        build_model(residual_scheme="resi-dual", scheme_variant=variant).eval()
        for variant in ("plain", "scaled")
    )
    real = batch["prev_output_tokens"].ne(1)
    close = {"atol": 1e-3, "rtol": 1e-3}  # the last LayerNorm's eps is not scaled
    torch.testing.assert_close(scaled(**batch)[0][real], plain(**batch)[0][real], **close)
    x, branch = torch.randn(3, 32).half(), torch.full((3, 32), 6e4, dtype=torch.half)
    finite = []
    for model in (plain, scaled):
        residual = model.encoder.layers[0].residuals.self_attn
        stream = x
        for _ in range(4):
            stream = residual.leave(stream, branch, nn.Identity(), nn.Identity())
        finite.append(bool(stream[1].isfinite().all()))
    assert finite == [False, True]


def test_dlcl_initially_averages_all_lower_outputs() -> None:
    weight = build_model(residual_scheme="dlcl").encoder.combination.weight
    rows = [[1 / (layer + 1)] * (layer + 1) + [0.0] * (3 - layer) for layer in range(4)]
    torch.testing.assert_close(weight.detach(), torch.tensor(rows))
