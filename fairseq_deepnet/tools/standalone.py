"""Models built without a corpus, from the name and options of an architecture."""

from argparse import Namespace
from typing import Any

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)

# isort: split
import fairseq.models
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, FairseqLanguageModel
from fairseq.models.roberta import RobertaModel

from fairseq_deepnet.tools.fairseq_options import quiet


class VocabularyTask:
    """Minimal task for building a fairseq model, with one dictionary for both sides.

    Args:
        vocabulary: number of entries, including fairseq's four special symbols.
    """

    def __init__(self, vocabulary: int) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(vocabulary - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{number}")


def usual_task(arch: str) -> str:
    """Return the usual fairseq task of an architecture."""
    model: Any = ARCH_MODEL_REGISTRY.get(arch, object)
    if issubclass(model, RobertaModel):
        return "masked_lm"
    return "language_modeling" if issubclass(model, FairseqLanguageModel) else "translation"


def build_from_arguments(args: Namespace, vocabulary: int, target: int | None = None) -> Any:
    """Build the model described by fairseq-train's parsed arguments, without pretrained embeddings.

    Args:
        vocabulary: number of entries in the dictionary.
        target: number of entries in the target dictionary, if there is a separate one.

    Raises:
        ValueError: if the architecture is unknown or rejects its options.
    """
    if args.arch not in ARCH_CONFIG_REGISTRY:
        raise ValueError(f"neither fairseq nor this plugin has the architecture {args.arch}")
    args = Namespace(**vars(args) | {"encoder_embed_path": None, "decoder_embed_path": None})
    task: Any = VocabularyTask(vocabulary)
    task.dictionary = task.source_dictionary
    if target not in (None, vocabulary):
        task.target_dictionary = VocabularyTask(target).target_dictionary
    task.max_positions = lambda: getattr(args, "tokens_per_sample", None) or 512
    try:
        with quiet():
            # some models take fairseq's dataclasses, others plain arguments
            config = convert_namespace_to_omegaconf(args)
            return fairseq.models.build_model(config.model, task)
    except (AssertionError, AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(f"--arch {args.arch} refuses its options: {error}") from error
