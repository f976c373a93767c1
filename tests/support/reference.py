"""Independent implementation of every scheme's forward pass, as in its paper.

Shapes: B = batch, T = target length, S = source length, C = channels, H = heads, D = C / H,
V = vocabulary. Weights have the names of a model's parameters. Dropout is off unless a test passes
functions for it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]
Branch = Callable[[Tensor], Tensor]


class Dropped(NamedTuple):
    """Functions in place of dropout: at a branch's end, on attention weights, on fc1's output."""

    branch: Branch = torch.clone
    attention: Branch = torch.clone
    activation: Branch = torch.clone


NOTHING = Dropped()


def under(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """Return the weights of a submodule by their names in it."""
    start = f"{prefix}."
    return {name[len(start) :]: w for name, w in weights.items() if name.startswith(start)}


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])


def attention(
    w: Weights, heads: int, x: Tensor, source: Tensor, mask: Tensor, dropped: Dropped = NOTHING
) -> Tensor:
    """Attend from x [B, T, C] to source [B, S, C] with mask [B or 1, 1, T or 1, S].

    In the mask, True = may attend. NormFormer's head factors and Sub-LN's LayerNorm over all heads
    are applied if `w` has them.
    """

    def projected(role: str, y: Tensor) -> Tensor:
        return linear(w, role, y).unflatten(-1, (heads, -1)).transpose(1, 2)

    q, k, v = projected("q_proj", x), projected("k_proj", source), projected("v_proj", source)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    each = dropped.attention(scores.masked_fill(~mask, -math.inf).softmax(dim=-1)) @ v
    if "head_transform.scale" in w:
        each = each * w["head_transform.scale"].view(heads, 1, 1)
    joined = each.transpose(1, 2).flatten(2)
    if "head_transform.norm.weight" in w:
        joined = layer_norm(w, "head_transform.norm", joined)
    return linear(w, "out_proj", joined)


def feed_forward(w: Weights, x: Tensor, dropped: Dropped = NOTHING) -> Tensor:
    """Return fc2(relu(fc1(x))), with the shifts and the LayerNorm in `w`, if any."""
    hidden = torch.relu(linear(w, "fc1", x) + w.get("pre_activation_transform.shift", 0))
    hidden = dropped.activation(hidden)
    if "post_activation_transform.weight" in w:
        hidden = layer_norm(w, "post_activation_transform", hidden)
    return linear(w, "fc2", hidden + w.get("post_activation_transform.shift", 0))


def join(
    scheme: str,
    x: Tensor,
    branch: Branch,
    norm: Branch,
    own: Weights,
    alpha: float,
    drop: Branch,
    layer: int,
) -> Tensor:
    """Return the stream after a sublayer.

    Args:
        own: learned tensors of the residual.
        alpha: DeepNorm's alpha.
        layer: number of the layer, from 1.
    """
    if scheme in ("deepnorm", "post-ln", "post-ln-init", "ds-init"):
        return norm(alpha * x + drop(branch(x)))
    if scheme == "admin":
        return norm((own["weight"] + own["offset"]) * x + drop(branch(x)))
    if scheme == "admin-log":
        return norm(own["weight"] * x + drop(branch(x)))
    if scheme == "branchnorm":
        return norm(x + own["scale"] * drop(branch(x)))
    if scheme in ("pre-ln", "dlcl", "sub-ln"):
        return x + drop(branch(norm(x)))
    if scheme == "peri-ln":
        return x + drop(layer_norm(own, "branch_norm", branch(norm(x))))
    if scheme == "ln-scaling":
        return x + drop(branch(norm(x) / math.sqrt(layer)))
    if scheme == "normformer":
        y = branch(norm(x))
        if "branch_norm.weight" in own:
            y = layer_norm(own, "branch_norm", y)
        return own.get("weight", 1) * x + drop(y)
    if scheme == "rezero":
        return x + own["weight"] * drop(branch(x))
    if scheme == "r-fixup":
        return x + own["weight"] * drop(branch(x + own["before.shift"]))
    assert scheme == "t-fixup"
    return x + drop(branch(x))


def run_stack(
    scheme: str,
    w: Weights,
    heads: int,
    x: Tensor,
    mask: Tensor,
    cross: Any = None,
    dropped: Dropped = NOTHING,
) -> Tensor:
    """Run x [B, T, C] through a stack and the modules after it.

    Args:
        mask: self-attention mask.
        cross: the encoder's output and its mask, in a decoder.
    """
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("layers."))
    outputs = [x]  # DLCL's stored outputs: the embedding, then normalised layers
    scale = w.get("scale", 1.0)  # scale of ResiDual's second stream r
    r = scale * x
    for number in range(depth):
        if scheme == "dlcl":
            row = w["combination.weight"][number]
            x = sum(row[k] * y for k, y in enumerate(outputs))
        part = under(w, f"layers.{number}")
        sublayers: list[tuple[str, str, Branch]] = [
            (
                "self_attn",
                "self_attn_layer_norm",
                lambda y, p=part: attention(under(p, "self_attn"), heads, y, y, mask, dropped),
            ),
            ("ffn", "final_layer_norm", lambda y, p=part: feed_forward(p, y, dropped)),
        ]
        if cross is not None:
            between = lambda y, p=part: attention(  # noqa: E731
                under(p, "encoder_attn"), heads, y, *cross, dropped
            )
            sublayers.insert(1, ("encoder_attn", "encoder_attn_layer_norm", between))
        bottom = x  # B2T's layer input
        for name, norm_name, branch in sublayers:
            own = under(part, f"residuals.{name}")
            norm = lambda y, p=part, n=norm_name: layer_norm(p, n, y)  # noqa: E731
            alpha = float(w.get("alpha", 1.0))
            if scheme in ("b2t", "resi-dual"):
                y = dropped.branch(branch(x))
                r = r + scale * y
                x = norm(x + y + (bottom if scheme == "b2t" and name == "ffn" else 0))
            else:
                x = join(scheme, x, branch, norm, own, alpha, dropped.branch, number + 1)
        if scheme == "dlcl":
            outputs.append(layer_norm(w, f"combination.norms.{number}", x))
    if scheme == "dlcl":
        x = sum(w["combination.weight"][depth][k] * y for k, y in enumerate(outputs))
    if scheme in ("pre-ln", "dlcl", "normformer", "sub-ln", "peri-ln", "ln-scaling"):
        x = layer_norm(w, "layer_norm", x)
    if scheme == "resi-dual":
        weight, bias = w["output_transform.norm.weight"], w["output_transform.norm.bias"]
        x = x + F.layer_norm(r, r.shape[-1:], weight, bias, eps=1e-7)
    if scheme == "r-fixup" and cross is None:
        x = (x + w["output_transform.0.shift"]) * w["output_transform.1.scale"]
    elif scheme == "r-fixup":
        x = x + w["output_transform.shift"]
    return x


def logits(
    scheme: str, model: Any, batch: Mapping[str, Tensor], dropped: Dropped = NOTHING
) -> Tensor:
    """Return an encoder-decoder's logits [B, T, V] for targets padded on the right.

    Embeddings are the model's.
    """
    weights = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    encoder, decoder = (under(weights, side) for side in ("encoder", "decoder"))
    for side, part in (("encoder", encoder), ("decoder", decoder)):
        if side in model.args.residual_record["alphas"]:
            part["alpha"] = torch.tensor(model.args.residual_record["alphas"][side])
        if model.args.residual_record["variant"] == "scaled":
            part["scale"] = torch.tensor(1 / 64)
    heads = model.encoder.layers[0].self_attn.num_heads
    source, target = batch["src_tokens"], batch["prev_output_tokens"]
    seen = source.ne(1)
    x = model.encoder.forward_embedding(source)[0] * seen.unsqueeze(-1)
    mask = seen[:, None, None, :]
    encoded = run_stack(scheme, encoder, heads, x, mask, dropped=dropped)
    past = torch.ones(target.size(1), target.size(1), dtype=torch.bool).tril()[None, None]
    y = model.decoder.embed(target, None)
    y = run_stack(scheme, decoder, heads, y, past, (encoded, mask), dropped)
    return F.linear(y, weights["decoder.output_projection.weight"])
