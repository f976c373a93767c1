"""Every scheme's forward pass once more, as its paper writes it: plain functions of weights.

Shapes: B = batch, T = target length, S = source length, C = channels, H = heads, D = C / H,
V = vocabulary. Weights go by the names that a model gives them. Nothing is dropped unless a test
says how.
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
    """What acts where a training drops: on a branch's end, attention's weights, fc1's output."""

    branch: Branch = torch.clone
    attention: Branch = torch.clone
    activation: Branch = torch.clone


NOTHING = Dropped()


def under(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weights of a part, by their names in it."""
    start = f"{prefix}."
    return {name[len(start) :]: w for name, w in weights.items() if name.startswith(start)}


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])


def attention(
    w: Weights, heads: int, x: Tensor, source: Tensor, mask: Tensor, dropped: Dropped = NOTHING
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V and out_proj, of x [B, T, C] over source [B, S, C].

    mask: [B or 1, 1, T or 1, S], True = may attend. NormFormer's factor a head, and Sub-LN's
    LayerNorm over all heads, where there are such.
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
    """fc2(relu(fc1(x))), with R-Fixup's shifts, NormFormer's and Sub-LN's LN where they are."""
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
    """The stream after a sublayer of layer 1, 2, ...; own: what it learns; alpha: DeepNorm's."""
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
    assert scheme in ("t-fixup", "plain")
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
    """All layers of a stack, and what follows them, on x [B, T, C].

    mask: of the self-attention. cross: the encoder's output and its mask, for a decoder.
    """
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("layers."))
    outputs = [x]  # of DLCL: the embedding as it is, layers normalised
    scale = w.get("scale", 1.0)  # of ResiDual's second stream r
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
        bottom = x  # B2T's: what enters the layer
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
    """Of an encoder-decoder, [B, T, V]; targets are padded on the right, embeddings are fairseq's.

    scheme: whose formula; "plain" is x + G(x) without anything else, whatever the model has.
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
