"""Models without a corpus, built from an arch's name and options as fairseq builds them."""

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
    """The part of a fairseq task that a model needs: two dictionaries, which are equal here.

    `vocabulary` is the number of entries, including fairseq's four special symbols.
    """

    def __init__(self, vocabulary: int) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(vocabulary - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{number}")


def usual_task(arch: str) -> str:
    """Return the fairseq task for models of this arch."""
    model: Any = ARCH_MODEL_REGISTRY.get(arch, object)
    if issubclass(model, RobertaModel):
        return "masked_lm"
    return "language_modeling" if issubclass(model, FairseqLanguageModel) else "translation"


def build_from_arguments(args: Namespace, vocabulary: int, target: int | None = None) -> Any:
    """Build the model described by fairseq-train's parsed arguments.

    `vocabulary` is the number of entries of the dictionary, `target` that of a different target
    dictionary. Raises ValueError for an unknown arch and for options that its model refuses.
    """
    if args.arch not in ARCH_CONFIG_REGISTRY:
        raise ValueError(f"arch {args.arch} is known neither to fairseq nor to this plugin")
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
