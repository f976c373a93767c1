"""`--arch deepnet_transformer_lm`, the decoder-only model for fairseq's language_modeling task.

Shapes are written as embedding width/feed-forward width/number of heads; 6L means 6 layers.
"""

import dataclasses
from argparse import ArgumentParser, Namespace

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    DEFAULT_MAX_TARGET_POSITIONS,
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from fairseq.tasks import FairseqTask

from ..dictionaries import record_dictionaries
from ..schemes import Side
from .decoder import DeepNetDecoder
from .options import DECODER_ONLY, check_options, default, default_depth, default_shape
from .running_options import HonoursBf16, add_running_arguments
from .scheme_options import add_scheme_arguments, default_scheme, finish_model, record_scheme


@register_model("deepnet_transformer_lm")
class DeepNetTransformerLM(HonoursBf16, TransformerLanguageModel):
    """fairseq's Transformer language model with the residuals and initial weights of a scheme.

    Options, embeddings, parameter names and the interface to fairseq-eval-lm are those of
    `TransformerLanguageModel`. With `--residual-scheme post-ln` (or `pre-ln`), this model can load
    checkpoints of `--arch transformer_lm` without adaptive input. fairseq's build_model is
    overridden because it hard-codes the decoder's class.
    """

    def __init__(self, args: Namespace, decoder: DeepNetDecoder) -> None:
        super().__init__(decoder)
        self.args = args

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's language-model options and ours."""
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)
        add_scheme_arguments(parser)
        add_running_arguments(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "DeepNetTransformerLM":
        """Build the model and record its scheme in `args`.

        Raises:
            ConfigurationError: if options contradict each other or are not supported.
        """
        deepnet_transformer_lm(args)
        scheme = record_scheme(args, DECODER_ONLY.sides)
        record_dictionaries(args, task)
        longest = getattr(args, "tokens_per_sample", DEFAULT_MAX_TARGET_POSITIONS)
        default(args, max_target_positions=longest)
        cfg = TransformerConfig.from_namespace(args)
        if args.decoder_layers_to_keep:
            cfg.decoder.layers = len(args.decoder_layers_to_keep.split(","))
        embeddings = cls.build_embedding(args, task.source_dictionary, args.decoder_input_dim)
        decoder = DeepNetDecoder(
            cfg, task.target_dictionary, embeddings, scheme, no_encoder_attn=True
        )
        model = cls(args, decoder)
        finish_model(model, args, scheme, {Side.DECODER: decoder})
        return model


@register_model_architecture("deepnet_transformer_lm", "deepnet_transformer_lm")
def deepnet_transformer_lm(args: Namespace) -> None:
    """Base shape of fairseq's transformer_lm: 512/2048/8, 6L.

    fairseq's base_lm_architecture is not called, because it selects Pre-LN for every model.
    """
    default_scheme(args)
    default_shape(args, 512, 2048, 8, DECODER_ONLY.sides)
    default_depth(args, 6, DECODER_ONLY.sides)
    width = args.decoder_embed_dim
    default(args, decoder_input_dim=width, decoder_output_dim=width)
    for option in dataclasses.fields(TransformerLanguageModelConfig):
        # "${task...}" refers to an option of the task.
        if not str(option.default).startswith("${"):
            default(args, **{option.name: option.default})
    check_options(args, DECODER_ONLY)


@register_model_architecture("deepnet_transformer_lm", "deepnet_transformer_lm_tiny")
def deepnet_transformer_lm_tiny(args: Namespace) -> None:
    """Tiny shape, as in deepnet_transformer_tiny: 64/128/2."""
    default_shape(args, 64, 128, 2, DECODER_ONLY.sides)
    deepnet_transformer_lm(args)
