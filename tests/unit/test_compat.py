"""Repairs of fairseq, and the checkpoint classes that torch may load."""

import argparse
import collections
import importlib.metadata
import math
from pathlib import Path
from types import SimpleNamespace

import fairseq.data.data_utils
import fairseq.options
import numpy as np
import pytest
import torch
import torch.multiprocessing
from fairseq import checkpoint_utils
from fairseq.data import Dictionary, LanguagePairDataset, TokenBlockDataset
from fairseq.dataclass.configs import CheckpointConfig

from fairseq_deepnet import compat


def test_another_fairseq_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match=r"pip install --no-build-isolation fairseq-fixed=="):
        compat.require_fairseq()


def test_python_without_assertions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq would save no checkpoint, and the run would seem to succeed."""
    monkeypatch.setattr(compat, "sys", SimpleNamespace(flags=SimpleNamespace(optimize=1)))
    with pytest.raises(ImportError, match="unset"):
        compat.require_fairseq()


def test_the_content_of_fairseq_checkpoints_loads_with_weights_only(tmp_path: Path) -> None:
    state = {
        "cfg": {
            "model": argparse.Namespace(arch="deepnet_transformer", residual_alphas=[1.4, 2.1])
        },
        "extra_state": {"metrics": collections.OrderedDict(counts=np.array([3, 2, 1, 0]))},
        "model": {"encoder.version": torch.tensor([3.0])},
    }
    torch.save(state, tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert loaded["cfg"]["model"] == state["cfg"]["model"]
    assert loaded["extra_state"]["metrics"]["counts"].tolist() == [3, 2, 1, 0]


def test_a_checkpoint_with_any_other_class_is_refused(tmp_path: Path) -> None:
    torch.save({"cfg": Path("x"), "model": {}}, tmp_path / "checkpoint.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(tmp_path / "checkpoint.pt", weights_only=True)


def test_bf16_does_not_ask_for_a_tpu() -> None:
    parser = fairseq.options.get_training_parser()
    words = ["DATA", "--arch", "deepnet_transformer", "--bf16"]
    args = fairseq.options.parse_args_and_arch(parser, words)
    assert (args.bf16, args.tpu) == (True, False)


def test_a_polynomial_decay_ends_with_the_run_unless_its_length_is_set() -> None:
    words = ["DATA", "--arch", "deepnet_transformer", "--lr-scheduler", "polynomial_decay"]

    def total(*more: str) -> object:
        parser = fairseq.options.get_training_parser()
        return fairseq.options.parse_args_and_arch(parser, [*words, *more]).total_num_update

    assert total("--max-update", "70") == 70
    assert float(str(total("--max-update", "70", "--total-num-update", "30"))) == 30
    with pytest.raises(SystemExit):
        total("--max-epoch", "2")


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("sentences", [5, 12, 16])
def test_batching_loses_no_sentence(sentences: int, multiple: int) -> None:
    sizes = np.arange(3, 3 + sentences)
    batches = fairseq.data.data_utils.batch_by_size(
        np.arange(sentences),
        num_tokens_fn=lambda index: sizes[index],
        num_tokens_vec=sizes,
        max_tokens=1000,
        required_batch_size_multiple=multiple,
    )
    assert np.concatenate(batches).tolist() == list(range(sentences))
    assert all(len(batch) % multiple == 0 for batch in batches[:-1])


@pytest.mark.parametrize("break_mode", ["none", "complete", "complete_doc", "eos"])
def test_every_sample_break_mode_works_with_numpy_2(break_mode: str) -> None:
    lines = [torch.tensor([5, 6, 2]), torch.tensor([7, 2]), torch.tensor([8, 9, 10, 2])]
    blocks = TokenBlockDataset(lines, [3, 2, 4], 4, pad=1, eos=2, break_mode=break_mode)
    assert torch.cat([blocks[index] for index in range(len(blocks))]).tolist() == [
        *(5, 6, 2, 7, 2, 8, 9, 10, 2)
    ]
    assert not hasattr(np, "compat")  # numpy itself is unchanged


def test_sentences_are_padded_to_the_lengths_of_their_buckets() -> None:
    words = Dictionary()
    lines = [torch.full((length,), 2) for length in (1, 2, 3, 5, 8, 8)]
    sizes = np.array([len(line) for line in lines])
    data = LanguagePairDataset(
        lines, sizes, words, lines, sizes, words, left_pad_source=True, num_buckets=2
    )
    assert [len(data[index]["source"]) for index in range(6)] == [3, 3, 3, 8, 8, 8]
    batch = data.collater([data[0], data[2]])
    assert batch["net_input"]["src_tokens"].tolist() == [[2, 2, 2], [1, 1, 2]]  # the longer first
    assert data.buckets == [(None, 3), (None, 8)]


def test_attention_never_uses_cudnn() -> None:
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_worse_checkpoint_after_a_loss_of_nan_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save = checkpoint_utils.save_checkpoint
    monkeypatch.setattr(save, "best", 3.0, raising=False)
    cfg = CheckpointConfig(no_save=True)
    for loss in (math.nan, 4.0):
        save(cfg, SimpleNamespace(data_parallel_rank=1), None, loss)
    assert save.best == 3.0
