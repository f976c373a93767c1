"""torchscale's EncoderDecoder with DeepNorm as a model of fairseq: `--arch torchscale`.

The package does not mask the padding of sources, which saves it a little work.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

from check_torchscale import PADDING, install, stand_in_for_timm
from fairseq import utils
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from fairseq.models.transformer import Embedding, TransformerModel, base_architecture
from fairseq.modules import PositionalEmbedding

VERSION: Final = "0.3.0"


def folder() -> Path:
    """Folder of the installation."""
    return Path(tempfile.gettempdir()) / f"torchscale-{VERSION}"


def build(args: Namespace, vocabulary: int) -> Any:
    """Build torchscale's model from fairseq's options."""
    install(VERSION, folder())
    sys.path.insert(0, str(folder()))
    stand_in_for_timm()
    warnings.simplefilter("ignore")  # fairscale's, about names that torch has moved
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.encoder_decoder import EncoderDecoder

    shape: dict[str, Any] = {"vocab_size": vocabulary, "no_scale_embedding": False}
    for side in ("encoder", "decoder"):
        for size in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
            shape[f"{side}_{size}"] = getattr(args, f"{side}_{size}")
    config = EncoderDecoderConfig(
        deepnorm=True,
        dropout=args.dropout,
        activation_fn=args.activation_fn,
        share_all_embeddings=True,
        checkpoint_activations=args.checkpoint_activations,
        **shape,
    )
    table = Embedding(vocabulary, args.encoder_embed_dim, PADDING)
    positions = [PositionalEmbedding(1024, args.encoder_embed_dim, PADDING) for _ in range(2)]
    return EncoderDecoder(config, table, positions[0], table, positions[1])


@register_model("torchscale")
class TorchscaleModel(BaseFairseqModel):
    """Interface of fairseq's Trainer and criterions around `build`."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = inner.encoder, inner.decoder
        self.inner = [inner]  # not a module of its own: every parameter would have two names

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        TransformerModel.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> TorchscaleModel:
        return cls(build(args, len(task.source_dictionary)))

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
