"""Independent implementation of our models, by sentence and by head, which records activations.

It uses only the paper's formulas and fairseq's parameter names, without padding, batches or our
layers. A sentence is [T, C].
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.support.rig import EOS, Pair

Slot = tuple[str, str, int]
"""Side, part, layer."""
PARTS = {
    "self_attn": "self_attn_layer_norm",
    "encoder_attn": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}


class ByHand:
    """Forward pass over sentences.

    Args:
        model: one of our models, without positions; its parameters can receive gradients.
        placement: placement of LayerNorm (post, pre or none).
        alpha: alpha per side, in LN(alpha x + G(x)).

    Attributes:
        streams, branches: tensors per sentence, by slot.
        norms: input and output of each LayerNorm; no other operation uses this input tensor.
        features: decoder outputs [T, C] per sentence.
    """

    def __init__(self, model: Any, placement: str = "post", **alpha: float) -> None:
        self.model, self.placement, self.alpha = model, placement, alpha
        self.heads = 2
        self.streams: dict[Slot, list[Tensor]] = defaultdict(list)
        self.branches: dict[Slot, list[Tensor]] = defaultdict(list)
        self.norms: dict[Slot, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self.features: list[Tensor] = []

    def parameter(self, name: str) -> Any:
        try:
            return self.model.get_parameter(name)
        except AttributeError:
            return None

    def run(self, pairs: Sequence[Pair]) -> Tensor:
        """Run all sentences and return the mean over words of -log p (natural logarithm)."""
        losses = []
        for source, target in pairs:
            if not hasattr(self.model, "encoder"):
                inputs, target = source, source
                memory = None
            else:
                inputs = [EOS, *target[:-1]]
                memory = self.stack("encoder", source, None)
            features = self.stack("decoder", inputs, memory)
            self.features.append(features)
            logits = features @ self.parameter("decoder.output_projection.weight").T
            for row, word in zip(logits, target, strict=True):
                losses.append(torch.logsumexp(row, dim=0) - row[word])
        return torch.stack(losses).mean()

    def stack(self, side: str, words: list[int], memory: Tensor | None) -> Tensor:
        table = self.parameter(f"{side}.embed_tokens.weight")
        x = math.sqrt(table.size(1)) * torch.stack([table[word] for word in words])
        x = self.norm(x, f"{side}.layernorm_embedding", (side, "embedding", 0))
        combination = self.parameter(f"{side}.combination.weight")
        outputs = [x]
        for layer in range(len(getattr(self.model, side).layers)):
            if combination is not None:
                x = sum(w * y for w, y in zip(combination[layer], outputs, strict=False))
            x = self.layer(x, side, layer, memory)
            if combination is not None:
                outputs.append(
                    self.norm(x, f"{side}.combination.norms.{layer}", (side, "combination", layer))
                )
        if combination is not None:
            x = sum(w * y for w, y in zip(combination[-1], outputs, strict=True))
        return self.norm(x, f"{side}.layer_norm", (side, "final", 0))

    def layer(self, x: Tensor, side: str, layer: int, memory: Tensor | None) -> Tensor:
        name = f"{side}.layers.{layer}"
        for part in PARTS:
            if part == "encoder_attn" and memory is None:
                continue
            slot = (side, part, layer)
            norm = f"{name}.{PARTS[part]}"
            self.streams[slot].append(x)
            h = self.norm(x, norm, slot) if self.placement == "pre" else x
            if part == "ffn":
                g = self.feed_forward(h, name, slot)
            else:
                g = self.attention(h, h if part == "self_attn" else memory, f"{name}.{part}", slot)
            self.branches[slot].append(g)
            extra = (side, f"residuals.{part}.branch_norm", layer)  # NormFormer's
            g = self.norm(g, f"{name}.{extra[1]}", extra)
            weight = self.parameter(f"{name}.residuals.{part}.weight")
            if self.placement == "post":
                alpha = self.alpha[side] if weight is None else weight
                x = self.norm(alpha * x + g, norm, slot)
            else:
                x = x + (g if weight is None else weight * g)
        return x

    def feed_forward(self, h: Tensor, name: str, slot: Slot) -> Tensor:
        hidden = torch.relu(self.linear(h, f"{name}.fc1"))
        extra = (slot[0], "post_activation_transform", slot[2])  # NormFormer's
        hidden = self.norm(hidden, f"{name}.{extra[1]}", extra)
        return self.linear(hidden, f"{name}.fc2")

    def attention(self, h: Tensor, source: Any, name: str, slot: Slot) -> Tensor:
        q, k = self.linear(h, f"{name}.q_proj"), self.linear(source, f"{name}.k_proj")
        v = self.linear(source, f"{name}.v_proj")
        size = q.size(1) // self.heads
        scale = self.parameter(f"{name}.head_transform.scale")
        heads = []
        for head in range(self.heads):
            columns = slice(head * size, (head + 1) * size)
            rows = []
            for t in range(len(q)):
                seen = t + 1 if slot[:2] == ("decoder", "self_attn") else len(k)
                scores = k[:seen, columns] @ q[t, columns] / math.sqrt(size)
                p = torch.softmax(scores, dim=0)
                rows.append(p @ v[:seen, columns])
            heads.append(torch.stack(rows) * (1 if scale is None else scale[head]))
        return self.linear(torch.cat(heads, dim=1), f"{name}.out_proj")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.parameter(f"{name}.weight").T + self.parameter(f"{name}.bias")

    def norm(self, x: Tensor, name: str, slot: Slot) -> Tensor:
        """Apply the LayerNorm with this name, if there is one."""
        weight = self.parameter(f"{name}.weight")
        if weight is None:
            return x
        alias = 1.0 * x
        middle = alias - alias.mean(dim=1, keepdim=True)
        variance = (middle * middle).mean(dim=1, keepdim=True)
        out = weight * middle / torch.sqrt(variance + 1e-5) + self.parameter(f"{name}.bias")
        self.norms[slot].append((alias, out))
        return out


def size(tensors: Sequence[Tensor]) -> float:
    """Return the L2 norm of all numbers in the tensors."""
    return math.sqrt(sum(float((tensor.detach() ** 2).sum()) for tensor in tensors))


def mean_row(sentences: Sequence[Tensor]) -> float:
    """Return the mean over all words of the L2 norm over channels."""
    rows = [row for sentence in sentences for row in sentence.detach()]
    return sum(float((row**2).sum()) ** 0.5 for row in rows) / len(rows)
