"""`--arch deepnet_masked_lm`: encoder-only, for fairseq's masked_lm task.

Each shape derives from a parent and says only what differs.
"""

from argparse import ArgumentParser, Namespace

from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta.model import RobertaEncoder, RobertaModel, base_architecture
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from torch import nn

from ..dictionaries import record_dictionaries
from ..schemes import ResidualScheme, Side
from .checkpoint_memory import settle_checkpointing
from .encoder import DeepNetEncoder
from .options import ENCODER_ONLY, check_options, default, default_depth, default_shape
from .running_options import add_running_arguments
from .scheme_options import add_scheme_arguments, default_scheme, finish_model, record_scheme


class DeepNetMaskedLMEncoder(RobertaEncoder):
    """Our encoder (`sentence_encoder`) below fairseq's head for masked tokens (`lm_head`).

    Args:
        args: the model's arguments.
        dictionary: with <mask>, which the task adds.
        scheme: how sublayers join and how weights start.
    """

    def __init__(self, args: Namespace, dictionary: Dictionary, scheme: ResidualScheme) -> None:
        # A plain attribute, which the base class's constructor needs through build_encoder.
        self.scheme = scheme
        super().__init__(args, dictionary)

    def build_encoder(
        self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> DeepNetEncoder:
        cfg = TransformerConfig.from_namespace(args)
        return DeepNetEncoder(cfg, dictionary, embed_tokens, self.scheme)

    @property
    def embed_tokens(self) -> nn.Module:
        """The table of words, under the name that schemes know."""
        return self.sentence_encoder.embed_tokens

    @property
    def output_projection(self) -> nn.Module:
        """The head, whose weight is the vocabulary projection, under the name that schemes know."""
        return self.lm_head


@register_model("deepnet_masked_lm")
class DeepNetMaskedLM(RobertaModel):
    """fairseq's RoBERTa with the residuals and initial weights of a chosen scheme.

    Of fairseq's two encoder-only models it inherits from `RobertaModel`: that one is built on the
    Transformer encoder of the encoder-decoder, as ours is (`masked_lm`, the older, has layers of
    its own, segments and a pooler), and brings classification heads and fill_mask. With
    `--residual-scheme post-ln` the checkpoints of `--arch roberta` load.

    What lies outside the layers starts as in RoBERTa: N(0, 0.02), zero biases. So do the layers
    with `--init stock`; else they start as the scheme says.

    Args:
        args: the model's arguments; they go into every checkpoint.
        encoder: a `DeepNetMaskedLMEncoder`.
    """

    def __init__(self, args: Namespace, encoder: DeepNetMaskedLMEncoder) -> None:
        super().__init__(args, encoder)  # draws every linear map and embedding as BERT does
        if args.init == "scheme":
            for layer in encoder.sentence_encoder.layers:
                layer.initialise(encoder.scheme)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's options of RoBERTa, ours, and those that its encoder reads besides."""
        RobertaModel.add_args(parser)
        add_scheme_arguments(parser)
        add_running_arguments(parser)
        parser.add_argument(
            "--checkpoint-activations",
            action="store_true",
            help="keep each layer's input only, and compute the rest again in backward",
        )
        parser.add_argument(
            "--offload-activations",
            action="store_true",
            help="keep that input in host memory; implies --checkpoint-activations",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "DeepNetMaskedLM":
        """Fix the scheme for good, and build.

        Raises:
            ConfigurationError: for options that contradict each other or cannot be honoured.
        """
        deepnet_masked_lm(args)
        scheme = record_scheme(args, ENCODER_ONLY.sides)
        record_dictionaries(args, task)
        if getattr(args, "max_positions", None) is None:
            args.max_positions = getattr(args, "tokens_per_sample", None) or task.max_positions()
        encoder = DeepNetMaskedLMEncoder(args, task.source_dictionary, scheme)
        model = cls(args, encoder)
        finish_model(model, args, scheme, {Side.ENCODER: encoder})
        settle_checkpointing(model, args, {Side.ENCODER: encoder.sentence_encoder})
        return model


@register_model_architecture("deepnet_masked_lm", "deepnet_masked_lm")
def deepnet_masked_lm(args: Namespace) -> None:
    """768/3072/12, 12L: the base shape of RoBERTa and BERT."""
    default_scheme(args)
    default(args, checkpoint_activations=False, offload_activations=False)
    base_architecture(args)
    check_options(args, ENCODER_ONLY)


@register_model_architecture("deepnet_masked_lm", "deepnet_masked_lm_tiny")
def deepnet_masked_lm_tiny(args: Namespace) -> None:
    """64/128/2, 6L: the tiny shape of deepnet_transformer_tiny."""
    default_shape(args, 64, 128, 2, ENCODER_ONLY.sides)
    default_depth(args, 6, ENCODER_ONLY.sides)
    deepnet_masked_lm(args)


@register_model_architecture("deepnet_masked_lm", "deepnet_masked_lm_large")
def deepnet_masked_lm_large(args: Namespace) -> None:
    """1024/4096/16, 24L: the shape of roberta_large."""
    default_shape(args, 1024, 4096, 16, ENCODER_ONLY.sides)
    default_depth(args, 24, ENCODER_ONLY.sides)
    deepnet_masked_lm(args)
