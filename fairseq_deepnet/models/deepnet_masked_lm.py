"""`--arch deepnet_masked_lm`, the encoder-only model for fairseq's masked_lm task.

Shapes are written as embedding width/feed-forward width/number of heads; 12L means 12 layers.
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
from .encoder import DeepNetEncoder
from .options import ENCODER_ONLY, check_options, default, default_depth, default_shape
from .running_options import add_running_arguments
from .scheme_options import add_scheme_arguments, default_scheme, finish_model, record_scheme


class DeepNetMaskedLMEncoder(RobertaEncoder):
    """Our encoder (`sentence_encoder`) below fairseq's head for masked tokens (`lm_head`)."""

    def __init__(self, args: Namespace, dictionary: Dictionary, scheme: ResidualScheme) -> None:
        # This attribute comes first because the base class calls build_encoder.
        self.scheme = scheme
        super().__init__(args, dictionary)

    def build_encoder(
        self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> DeepNetEncoder:
        cfg = TransformerConfig.from_namespace(args)
        return DeepNetEncoder(cfg, dictionary, embed_tokens, self.scheme)

    @property
    def embed_tokens(self) -> nn.Module:
        """Embedding table, under the name that schemes use."""
        return self.sentence_encoder.embed_tokens

    @property
    def output_projection(self) -> nn.Module:
        """Head with the vocabulary projection, under the name that schemes use."""
        return self.lm_head


@register_model("deepnet_masked_lm")
class DeepNetMaskedLM(RobertaModel):
    """fairseq's RoBERTa with the residuals and initial weights of a scheme.

    `RobertaModel` provides classification heads and fill_mask. With `--residual-scheme post-ln`,
    this model can load checkpoints of `--arch roberta`.

    As in RoBERTa, initial weights outside the layers have standard deviation 0.02, and biases are
    zero. With `--init stock`, this applies to layers too; otherwise the scheme initialises them.
    """

    def __init__(self, args: Namespace, encoder: DeepNetMaskedLMEncoder) -> None:
        super().__init__(args, encoder)  # draws every linear map and embedding as BERT does
        if args.init == "scheme":
            # children(), because iteration over LayerDrop's list skips layers
            for layer in encoder.sentence_encoder.layers.children():
                layer.initialise(encoder.scheme)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's RoBERTa options, ours, and those of activation checkpointing."""
        RobertaModel.add_args(parser)
        add_scheme_arguments(parser)
        add_running_arguments(parser)
        parser.add_argument(
            "--checkpoint-activations",
            action="store_true",
            help="keep only each layer's input and recompute the rest in the backward pass",
        )
        parser.add_argument(
            "--offload-activations",
            action="store_true",
            help="keep these inputs in host memory; implies --checkpoint-activations",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "DeepNetMaskedLM":
        """Build the model and record its scheme in `args`.

        Raises:
            ConfigurationError: if options contradict each other or are not supported.
        """
        deepnet_masked_lm(args)
        scheme = record_scheme(args, ENCODER_ONLY.sides)
        record_dictionaries(args, task)
        if getattr(args, "max_positions", None) is None:
            args.max_positions = getattr(args, "tokens_per_sample", None) or task.max_positions()
        encoder = DeepNetMaskedLMEncoder(args, task.source_dictionary, scheme)
        model = cls(args, encoder)
        finish_model(model, args, scheme, {Side.ENCODER: encoder})
        return model


@register_model_architecture("deepnet_masked_lm", "deepnet_masked_lm")
def deepnet_masked_lm(args: Namespace) -> None:
    """Base shape of RoBERTa and BERT: 768/3072/12, 12L."""
    default_scheme(args)
    default(args, checkpoint_activations=False, offload_activations=False)
    base_architecture(args)
    check_options(args, ENCODER_ONLY)


@register_model_architecture("deepnet_masked_lm", "deepnet_masked_lm_tiny")
def deepnet_masked_lm_tiny(args: Namespace) -> None:
    """Tiny shape, as in deepnet_transformer_tiny: 64/128/2, 6L."""
    default_shape(args, 64, 128, 2, ENCODER_ONLY.sides)
    default_depth(args, 6, ENCODER_ONLY.sides)
    deepnet_masked_lm(args)
