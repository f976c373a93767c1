"""A thousand layers on a laptop: the paper's depth builds, trains one update and decodes."""

import resource
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_deepnet.tools.standalone import VocabularyTask
from tests.support.models import SYMBOLS, build_model


@pytest.mark.parametrize("layers", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_deep_stacks_train_and_decode_in_little_memory(layers: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shape: dict[str, Any] = {"encoder_layers": layers // 2, "decoder_layers": layers // 2}
    model = build_model(**shape, share_all_embeddings=True)
    words = torch.randint(4, 4 + SYMBOLS, (2, 16, 16), generator=torch.Generator().manual_seed(1))
    logits, _ = model(words[0], None, words[1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), words[1].flatten()).backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    dictionary = VocabularyTask(4 + SYMBOLS).source_dictionary
    search = SequenceGenerator([model.eval()], dictionary, beam_size=5, max_len_b=20)
    sample = {"net_input": {"src_tokens": words[0][:4], "src_lengths": torch.full((4,), 16)}}
    assert len(search.generate([model], sample)) == 4
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak - before < 6 * 1024**2  # KiB
