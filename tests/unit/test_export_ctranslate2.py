"""`deepnet export --to ctranslate2`: the engine's log-probabilities, and the folder's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import load_checkpoint, save_checkpoint
from fairseq_deepnet.tools.corpora.subwords import encode_lines, load_model
from tests.support.runs import SENTENCES
from tests.support.trained import make_trained_run, task

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
FILES = ["config.json", "export.json", "model.bin", "shared_vocabulary.json", "spm.model"]


@pytest.fixture(scope="module")
def pieces(data: Path) -> list[list[str]]:
    model = load_model(data / "spm.model")
    lines = [*SENTENCES, "Zwölf Boxkämpfer jagen 3 dogs."]  # with unknown words
    return [line.split() for line in encode_lines(model, lines, 1)]


def export(*words: object) -> int:
    return cli.main(["export", *map(str, words), "--to", "ctranslate2"])


@torch.no_grad()
def log_probabilities(model: Any, data: Path, pieces: list[list[str]]) -> list[list[float]]:
    """Return the log-probability of every word and </s>, with the sentence itself as the source."""
    rows = []
    symbols = task(data).source_dictionary
    for line in pieces:
        words = [symbols.index(piece) for piece in line] + [symbols.eos()]
        tokens = torch.tensor([words])
        inputs = torch.tensor([[symbols.eos(), *words[:-1]]])
        logits = model(tokens, torch.tensor([len(words)]), inputs)[0]
        rows.append(logits.log_softmax(-1)[0].gather(1, tokens.T)[:, 0].tolist())
    return rows


def gap(ours: list[list[float]], folder: Path, pieces: list[list[str]]) -> float:
    """Return the largest difference of a word's log-probability from CTranslate2's."""
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    theirs = [row.log_probs for row in translator.score_batch(pieces, pieces)]
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        # one scheme per way of folding; test_folding.py contains all schemes
        *({"residual_scheme": name} for name in ("deepnorm", "admin", "pre-ln")),
        {"share_all_embeddings": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
        {"layernorm_embedding": True, "residual_scheme": "admin"},
        {"no_token_positional_embeddings": True, "no_scale_embedding": True},
        {"decoder_output_dim": 24},
        {"decoder_embed_dim": 48, "decoder_output_dim": 48, "decoder_input_dim": 48},
        {"encoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 4},
        {"residual_scheme": "pre-ln", "no_decoder_final_norm": True},
        *({"activation_fn": name} for name in ("gelu", "gelu_accurate", "tanh")),
    ],
    ids=lambda options: "+".join(f"{key}={value}" for key, value in options.items()),
)
def test_ctranslate2_gives_the_same_log_probabilities(
    options: dict[str, Any], tmp_path: Path, data: Path, pieces: list[list[str]]
) -> None:
    model = make_trained_run(tmp_path / "run", data, **options)
    assert export(tmp_path / "run") == 0
    folder = tmp_path / "run" / "export" / "ctranslate2-float32"
    assert gap(log_probabilities(model, data, pieces), folder, pieces) < 1e-4


@pytest.mark.parametrize("quantization", ["int8", "bfloat16"])
def test_a_quantised_model_is_similar(
    quantization: str, tmp_path: Path, data: Path, pieces: list[list[str]]
) -> None:
    model = make_trained_run(tmp_path / "run", data)
    assert export(tmp_path / "run", "--quantization", quantization) == 0
    folder = tmp_path / "run" / "export" / f"ctranslate2-{quantization}"
    assert 1e-6 < gap(log_probabilities(model, data, pieces), folder, pieces) < 0.3


def test_the_folder_is_self_contained(tmp_path: Path, data: Path) -> None:
    make_trained_run(tmp_path / "run", data)
    folder = tmp_path / "out"
    assert export(tmp_path / "run", "--quantization", "int8", "--out", folder) == 0
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "spm.model").read_bytes() == (data / "spm.model").read_bytes()
    facts = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    expected = {"languages": ["de", "en"], "language_tokens": None, "max_positions": [1024, 1024]}
    assert {key: facts[key] for key in expected} == expected
    symbols = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert symbols[:4] == ["<s>", "<blank>", "</s>", "<unk>"]
    assert symbols[4:] == task(data).source_dictionary.symbols[4:]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["decoder_start_token"], config["add_source_eos"]) == ("</s>", True)


def test_an_old_stock_model_that_names_tied_tables_once_is_exported(
    tmp_path: Path, data: Path, pieces: list[list[str]]
) -> None:
    options = {"arch": "transformer", "share_all_embeddings": True}
    model = make_trained_run(tmp_path / "run", data, **options)
    source = tmp_path / "run" / "checkpoints" / "checkpoint_best.pt"
    state = load_checkpoint(source)
    del state["model"]["decoder.output_projection.weight"]
    save_checkpoint(state, source)
    assert export(tmp_path / "run") == 0
    folder = tmp_path / "run" / "export" / "ctranslate2-float32"
    assert gap(log_probabilities(model, data, pieces), folder, pieces) < 1e-4
    assert json.loads((folder / "export.json").read_text(encoding="utf-8"))["scheme"] == "stock"
