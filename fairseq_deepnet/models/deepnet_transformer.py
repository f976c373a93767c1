"""`--arch deepnet_transformer`, the encoder-decoder model, and its named architectures.

"The paper" is arXiv 2203.00555. Shapes are written as embedding width/feed-forward width/number of
heads; 6L-6L means 6 encoder layers and 6 decoder layers.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from ..dictionaries import record_dictionaries
from ..schemes import Side
from .decoder import DeepNetDecoder
from .encoder import DeepNetEncoder
from .options import check_options, default, default_depth, default_shape
from .running_options import HonoursBf16, add_running_arguments
from .scheme_options import (
    add_scheme_arguments,
    default_scheme,
    finish_model,
    record_scheme,
    scheme_of,
)


@register_model("deepnet_transformer")
class DeepNetTransformerModel(HonoursBf16, TransformerModel):
    """fairseq's Transformer with the residuals and initial weights of a scheme."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's Transformer options and ours."""
        super().add_args(parser)
        add_scheme_arguments(parser)
        add_running_arguments(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "DeepNetTransformerModel":
        """Build the model and record its scheme in `args`.

        Raises:
            ConfigurationError: if options contradict each other or are not supported.
        """
        deepnet_transformer(args)
        scheme = record_scheme(args)
        record_dictionaries(args, task)
        model: DeepNetTransformerModel = super().build_model(args, task)
        stacks = {Side.ENCODER: model.encoder, Side.DECODER: model.decoder}
        finish_model(model, args, scheme, stacks)
        return model

    @classmethod
    def build_encoder(
        cls, cfg: Any, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> DeepNetEncoder:
        return DeepNetEncoder(cfg, src_dict, embed_tokens, scheme_of(cfg))

    @classmethod
    def build_decoder(
        cls, cfg: Any, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> DeepNetDecoder:
        return DeepNetDecoder(cfg, tgt_dict, embed_tokens, scheme_of(cfg))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        **options: Any,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Return logits [B, T, V] for prev_output_tokens [B, T] and src_tokens [B, S].

        Hidden states are returned only on request. fairseq returns them by default, which takes
        up most of a validation step's memory in a 1,000-layer stack. `options` are passed to
        `DeepNetDecoder.forward`.
        """
        is_full = options.get("full_context_alignment", False)
        mask = self.decoder.self_mask(prev_output_tokens, is_full)
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens
        )
        return self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
            return_all_hiddens=return_all_hiddens,
            self_mask=mask,
            **options,
        )


@register_model_architecture("deepnet_transformer", "deepnet_transformer")
def deepnet_transformer(args: Namespace) -> None:
    """Base shape of the paper (Tables 4 to 7) and of fairseq: 512/2048/8, 6L-6L."""
    # build_model also calls this. fairseq applies an arch while parsing, before it creates folders
    # and processes, so a mistyped option gives only an error message.
    default_scheme(args)
    default_shape(args, 512, 2048, 8)
    default_depth(args, 6)
    base_architecture(args)
    check_options(args)


def register(name: str, shape: tuple[int, int, int], layers: int, dropout: float) -> None:
    """Register deepnet_transformer_NAME, with this shape and number of layers per side."""

    @register_model_architecture("deepnet_transformer", f"deepnet_transformer_{name}")
    def arch(args: Namespace) -> None:
        default_shape(args, *shape)
        default_depth(args, layers)
        default(args, dropout=dropout)
        deepnet_transformer(args)


BASE = (512, 2048, 8)
LARGE = (1024, 4096, 16)
register("tiny", (64, 128, 2), 6, dropout=0.1)  # the paper's Fig. 5
register("iwslt_de_en", BASE, 6, dropout=0.4)  # Table 4; fairseq's IWSLT model is narrower
register("wmt_en_de", BASE, 6, dropout=0.4)  # Table 5
register("wmt_en_de_768", (768, 3072, 12), 6, dropout=0.4)  # Table 6
register("wmt_en_de_1024", LARGE, 6, dropout=0.4)  # Table 6
register("mm102", LARGE, 100, dropout=0.1)  # Table 8
for total in (12, 20, 100, 200, 1000):  # Tables 2 and 7
    register(f"opus100_{total}", BASE, total // 2, dropout=0.1)
