"""Models without a corpus: built from an arch's name and options, as fairseq builds them."""

from argparse import Namespace
from typing import Any

import fairseq_deepnet.models  # noqa: F401  (registers ours)

# isort: split
import fairseq.models
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, FairseqLanguageModel
from fairseq.models.roberta import RobertaModel

from fairseq_deepnet.tools.fairseq_options import quiet

MAX_POSITIONS = 512


class VocabularyTask:
    """All that building a translation model asks of a fairseq task: two dictionaries, here one.

    `vocabulary` counts entries, fairseq's four special symbols included.
    """

    def __init__(self, vocabulary: int) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(vocabulary - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{number}")


def build_model(arch: str, task: VocabularyTask, **options: Any) -> Any:
    """Build a new model of `arch` with fairseq-train's options, underscores for dashes.

    Raises ConfigurationError for options that this plugin refuses, KeyError for an unknown arch.
    """
    args = Namespace(arch=arch, **options)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def usual_task(arch: str) -> str:
    """Return the fairseq task that a model of this arch is trained with."""
    model: Any = ARCH_MODEL_REGISTRY.get(arch)
    if isinstance(model, type) and issubclass(model, RobertaModel):
        return "masked_lm"
    if isinstance(model, type) and issubclass(model, FairseqLanguageModel):
        return "language_modeling"
    return "translation"


def build_from_arguments(args: Namespace, vocabulary: int, target: int | None = None) -> Any:
    """Build the model that fairseq-train's parsed arguments describe.

    `vocabulary` counts the entries of the dictionary, `target` those of the target's where that is
    another. Raises ValueError for an unknown arch and for options that its model refuses.
    """
    if args.arch not in ARCH_CONFIG_REGISTRY:
        raise ValueError(f"arch {args.arch} is known neither to fairseq nor to this plugin")
    task: Any = VocabularyTask(vocabulary)
    task.dictionary = task.source_dictionary
    if target not in (None, vocabulary):
        task.target_dictionary = VocabularyTask(target).target_dictionary
    task.max_positions = lambda: getattr(args, "tokens_per_sample", None) or MAX_POSITIONS
    try:
        with quiet():
            # as fairseq-train does: some models take its dataclasses, others plain arguments
            config = convert_namespace_to_omegaconf(args)
            return fairseq.models.build_model(config.model, task)
    except (AssertionError, AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(f"--arch {args.arch} refuses its options: {error}") from error
