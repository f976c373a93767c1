"""Models without a corpus: built from an arch's name and options, as fairseq builds them."""

from argparse import Namespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY


class VocabularyTask:
    """All that building a translation model asks of a fairseq task: two dictionaries, here one.

    Args:
        vocabulary: number of entries, fairseq's four special symbols included.
    """

    def __init__(self, vocabulary: int) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(vocabulary - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{number}")


def build_model(arch: str, task: VocabularyTask, **options: Any) -> Any:
    """A new model of `arch`, registered by fairseq or by this plugin.

    Args:
        arch: as after --arch.
        task: its dictionaries size the embeddings.
        options: fairseq-train's model options, underscores for dashes.

    Raises:
        ConfigurationError: for options that this plugin refuses.
        KeyError: for an arch that is not registered.
    """
    args = Namespace(arch=arch, **options)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)
