"""torchscale's EncoderDecoder with DeepNorm as a model of fairseq: `--arch torchscale`.

The package does not mask the padding of sources, which saves it a little work.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from check_torchscale import build
from fairseq import utils
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture


@register_model("torchscale")
class TorchscaleModel(BaseFairseqModel):
    """Interface of fairseq's Trainer and criterions around torchscale's model."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = inner.encoder, inner.decoder
        self.inner = [inner]  # not a submodule, or every parameter would have two names

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> TorchscaleModel:
        sizes = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
        names = [f"{side}_{size}" for side in ("encoder", "decoder") for size in sizes]
        names += ["dropout", "activation_fn", "share_all_embeddings", "checkpoint_activations"]
        settings = {name: getattr(args, name) for name in names}
        return cls(build(len(task.source_dictionary), args.encoder_embed_dim, **settings))

    def forward(self, src_tokens: Any, src_lengths: Any, prev_output_tokens: Any) -> Any:
        return self.inner[0](src_tokens, prev_output_tokens)

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Any:
        function = utils.log_softmax if log_probs else utils.softmax
        return function(net_output[0], dim=-1)

    def max_positions(self) -> tuple[int, int]:
        return 1024, 1024


@register_model_architecture("torchscale", "torchscale")
def torchscale(args: Namespace) -> None:
    """Set fairseq's defaults."""
    base_architecture(args)
