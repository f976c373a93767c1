"""`--arch deepnet_transformer`: the encoder-decoder, and its named shapes.

Each shape derives from a parent and says only what differs. "Paper" is arXiv 2203.00555.
"""

import logging
from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from ..errors import ConfigurationError
from ..schemes import DEFAULT_SCHEME, SCHEMES, Depths, ResidualScheme, Side, scheme_class
from .decoder import DeepNetDecoder
from .encoder import DeepNetEncoder
from .options import check_options

logger = logging.getLogger(__name__)


@register_model("deepnet_transformer")
class DeepNetTransformerModel(TransformerModel):
    """fairseq's Transformer with the residuals and initial weights of a chosen scheme."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """fairseq's Transformer options, and ours."""
        super().add_args(parser)
        schemes = "; ".join(f"{name}: {scheme.summary}" for name, scheme in SCHEMES.items())
        parser.add_argument(
            "--residual-scheme",
            metavar="NAME",
            help=f"how a sublayer joins the residual stream, default {DEFAULT_SCHEME} ({schemes})",
        )
        parser.add_argument(
            "--init",
            metavar="{scheme,stock}",
            help="initial weights: the scheme's (default) or, for post-ln and pre-ln, fairseq's",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "DeepNetTransformerModel":
        """Fix alpha for good, and build.

        alpha goes into `args`, hence into every checkpoint: --encoder-layers-to-keep shortens a
        trained stack when it is loaded, and its alpha must stay that of the depth it was trained
        with.

        Raises:
            ConfigurationError: for options that contradict each other or cannot be honoured.
        """
        deepnet_transformer(args)
        scheme = scheme_of(args)
        args.residual_record = {
            "scheme": scheme.name,
            "depths": [scheme.depths.encoder, scheme.depths.decoder],
            "alphas": {side.value: alpha for side, alpha in scheme.alphas.items()},
        }
        logger.info("residual scheme: %s, init: %s", scheme, args.init)
        model: DeepNetTransformerModel = super().build_model(args, task)
        if args.init == "scheme":
            scheme.initialise_ends(model)
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
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Logits [B, T, V] of prev_output_tokens [B, T] given src_tokens [B, S].

        Hidden states are given only if asked for: fairseq's default keeps every layer's, which in a
        1,000-layer stack is most of the memory of a validation step.
        """
        return super().forward(
            src_tokens,
            src_lengths,
            prev_output_tokens,
            return_all_hiddens=return_all_hiddens,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )


def scheme_of(args: Any) -> ResidualScheme:
    """The scheme of a model: as its checkpoint recorded it, else from the depths asked for."""
    chosen = scheme_class(args.residual_scheme)
    record = getattr(args, "residual_record", None)
    if record is None:
        return chosen(Depths(args.encoder_layers, args.decoder_layers))
    if record["scheme"] != chosen.name:
        raise ConfigurationError(
            f"--residual-scheme {chosen.name} contradicts the checkpoint, which was trained with"
            f" {record['scheme']}; leave it out of the overrides"
        )
    alphas = {Side(side): alpha for side, alpha in record["alphas"].items()}
    return chosen(Depths(*record["depths"]), alphas)


def default(args: Namespace, **values: Any) -> None:
    """Set what the user (or a child arch) left open."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def default_shape(args: Namespace, width: int, ffn: int, heads: int) -> None:
    """Width, feed-forward width and heads of both sides."""
    for side in Side:
        default(
            args,
            **{
                f"{side.value}_embed_dim": width,
                f"{side.value}_ffn_embed_dim": ffn,
                f"{side.value}_attention_heads": heads,
            },
        )


def default_depth(args: Namespace, layers: int) -> None:
    """Layers a side."""
    default(args, encoder_layers=layers, decoder_layers=layers)


@register_model_architecture("deepnet_transformer", "deepnet_transformer")
def deepnet_transformer(args: Namespace) -> None:
    """512/2048/8, 6L-6L: the base shape of the paper (Tables 4 to 7) and of fairseq."""
    default(args, residual_scheme=DEFAULT_SCHEME, init="scheme")
    default_shape(args, 512, 2048, 8)
    default_depth(args, 6)
    base_architecture(args)
    # Here and not in build_model: fairseq applies an arch while it parses, before it makes folders
    # and starts a process a GPU, so that a mistyped option is one line and leaves nothing behind.
    check_options(args)


@register_model_architecture("deepnet_transformer", "deepnet_transformer_tiny")
def deepnet_transformer_tiny(args: Namespace) -> None:
    """64/128/2: the paper's Fig. 5."""
    default_shape(args, 64, 128, 2)
    deepnet_transformer(args)


@register_model_architecture("deepnet_transformer", "deepnet_transformer_iwslt_de_en")
def deepnet_transformer_iwslt_de_en(args: Namespace) -> None:
    """Paper, Table 4: the base shape, wider than fairseq's transformer_iwslt_de_en; dropout 0.4."""
    default(args, dropout=0.4)
    deepnet_transformer(args)


@register_model_architecture("deepnet_transformer", "deepnet_transformer_wmt_en_de")
def deepnet_transformer_wmt_en_de(args: Namespace) -> None:
    """Paper, Table 5: the base shape; dropout 0.4."""
    default(args, dropout=0.4)
    deepnet_transformer(args)


@register_model_architecture("deepnet_transformer", "deepnet_transformer_wmt_en_de_768")
def deepnet_transformer_wmt_en_de_768(args: Namespace) -> None:
    """768/3072/12, paper, Table 6."""
    default_shape(args, 768, 3072, 12)
    deepnet_transformer_wmt_en_de(args)


@register_model_architecture("deepnet_transformer", "deepnet_transformer_wmt_en_de_1024")
def deepnet_transformer_wmt_en_de_1024(args: Namespace) -> None:
    """1024/4096/16, paper, Table 6."""
    default_shape(args, 1024, 4096, 16)
    deepnet_transformer_wmt_en_de(args)


@register_model_architecture("deepnet_transformer", "deepnet_transformer_mm102")
def deepnet_transformer_mm102(args: Namespace) -> None:
    """100L-100L, 1024/4096/16: paper, Table 8."""
    default_shape(args, 1024, 4096, 16)
    default_depth(args, 100)
    default(args, dropout=0.1)
    deepnet_transformer(args)


def register_opus100(total: int) -> None:
    """Register deepnet_transformer_opus100_TOTAL: the base shape, half of TOTAL layers a side."""

    def arch(args: Namespace) -> None:
        default_depth(args, total // 2)
        default(args, dropout=0.1)
        deepnet_transformer(args)

    arch.__doc__ = f"{total // 2}L-{total // 2}L: paper, Tables 2 and 7."
    register_model_architecture("deepnet_transformer", f"deepnet_transformer_opus100_{total}")(arch)


for _total in (12, 20, 100, 200, 1000):
    register_opus100(_total)
