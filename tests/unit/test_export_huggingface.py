"""`deepnet export --to huggingface`: equal log-probabilities and translations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import load_checkpoint, save_checkpoint
from fairseq_deepnet.records import fingerprint, write_json
from fairseq_deepnet.tools.corpora.folder import MULTILINGUAL_TASK, Direction
from fairseq_deepnet.tools.corpora.subwords import encode_lines, load_model, train_model
from fairseq_deepnet.tools.corpora.text import Recipe, read_lines
from fairseq_deepnet.tools.translation.translate import add_arguments, open_engine
from tests.support.hugging_face import import_transformers
from tests.support.runs import SENTENCES, make_data
from tests.support.shell import Refused
from tests.support.trained import make_multilingual_data, make_trained_run, task

transformers = import_transformers()
huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the extra huggingface")
FILES = {
    *("README.md", "config.json", "export.json", "generation_config.json", "model.safetensors"),
    *("source.spm", "target.spm", "tokenizer_config.json", "vocab.json"),
}
LINES = [*SENTENCES, "Zwölf Boxkämpfer jagen 3 dogs."]


def export(*words: object) -> int:
    return cli.main(["export", *map(str, words), "--to", "huggingface"])


def load(folder: Path) -> tuple[Any, Any]:
    """Return the tokenizer and the model, which fit the folder's files exactly."""
    model, faults = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(faults.values())
    return transformers.AutoTokenizer.from_pretrained(folder), model.eval()


@torch.no_grad()
def gap(ours: Any, folder: Path) -> float:
    """Return the largest difference of a log-probability, in a batch with padding."""
    tokenizer, model = load(folder)
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    torch.manual_seed(3)
    inputs = torch.randint(4, 40, (len(LINES), 7))
    inputs[:, 0] = model.config.decoder_start_token_id
    theirs = model(**batch, decoder_input_ids=inputs, use_cache=False).logits
    logits = ours(batch.input_ids, batch.attention_mask.sum(1), inputs)[0]
    return float((logits.log_softmax(-1) - theirs.log_softmax(-1)).abs().max())


@pytest.mark.parametrize(
    "options",
    [
        {"residual_scheme": "deepnorm"},
        {"residual_scheme": "admin"},
        {"share_all_embeddings": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
        {"no_token_positional_embeddings": True},
        {"share_decoder_input_output_embed": True, "no_scale_embedding": True},
        {"encoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 4},
        {"encoder_ffn_embed_dim": 24, "max_source_positions": 30, "max_target_positions": 20},
        *({"activation_fn": name} for name in ("gelu", "gelu_accurate", "tanh")),
        {"arch": "transformer", "share_all_embeddings": True},
    ],
    ids=lambda options: "+".join(f"{key}={value}" for key, value in options.items()),
)
def test_transformers_gives_the_same_log_probabilities(
    options: dict[str, Any], tmp_path: Path, data: Path
) -> None:
    model = make_trained_run(tmp_path / "run", data, **options)
    assert export(tmp_path / "run") == 0
    folder = tmp_path / "run" / "export" / "huggingface"
    assert gap(model, folder) < 1e-4
    trained = sum(parameter.numel() for parameter in model.parameters())
    assert f" {trained:,} parameters" in (folder / "README.md").read_text(encoding="utf-8")


def test_learned_positions_limit_the_length_in_float32(tmp_path: Path, data: Path) -> None:
    options = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    lengths = {"max_source_positions": 12, "max_target_positions": 40}
    make_trained_run(tmp_path / "run", data, **options, **lengths)
    source = tmp_path / "run" / "checkpoints" / "checkpoint_best.pt"
    state = load_checkpoint(source)
    state["model"] = {name: tensor.bfloat16() for name, tensor in state["model"].items()}
    save_checkpoint(state, source)
    assert export(tmp_path / "run") == 0
    tokenizer, model = load(tmp_path / "run" / "export" / "huggingface")
    # both sides have tables of the same length
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 12
    assert model.generation_config.max_length <= 12 + 1
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_dictionaries_and_subwords_of_two_languages_stay_apart(tmp_path: Path) -> None:
    """The German model splits words where the English one does not."""
    data = make_data(tmp_path / "corpus")
    lines = (data / "dict.en.txt").read_text(encoding="utf-8").splitlines()
    (data / "dict.en.txt").write_text("".join(f"{line}\n" for line in lines[::-1]), "utf-8")
    (data / "spm.model").rename(data / "spm.en.model")
    train_model(read_lines(data / "text" / "test.de"), data / "spm.de", Recipe(vocab_size=40))
    model = make_trained_run(tmp_path / "run", data)
    assert export(tmp_path / "run") == 0
    folder = tmp_path / "run" / "export" / "huggingface"
    assert {path.name for path in folder.iterdir()} == FILES | {"target_vocab.json"}
    assert gap(model, folder) < 1e-4
    tokenizer, _ = load(folder)
    for language, dictionary, words in (
        ("de", task(data).source_dictionary, tokenizer(LINES).input_ids),
        ("en", task(data).target_dictionary, tokenizer(text_target=LINES).input_ids),
    ):
        pieces = encode_lines(load_model(data / f"spm.{language}.model"), LINES, 1)
        numbers = [[dictionary.index(piece) for piece in line.split()] for line in pieces]
        assert words == [[*line, dictionary.eos()] for line in numbers]
    texts = tokenizer.batch_decode(numbers[: len(SENTENCES)], skip_special_tokens=True)
    assert texts == SENTENCES


@pytest.mark.parametrize(("source", "target"), [("tgt", False), ("src", True)], ids=str)
def test_a_model_of_many_languages_translates_as_in_fairseq(
    source: str, target: bool, tmp_path: Path
) -> None:
    data = make_multilingual_data(tmp_path)
    about = {"_name": MULTILINGUAL_TASK, "encoder_langtok": source, "decoder_langtok": target}
    make_trained_run(tmp_path / "run", data, about=about, max_target_positions=24)
    assert export(tmp_path / "run") == 0
    folder = tmp_path / "run" / "export" / "huggingface"
    prefix = {"tgt": ">>en<< ", "src": ">>xx<< "}[source]
    tokenizer, model = load(folder)
    batch = tokenizer([prefix + line for line in LINES], return_tensors="pt", padding=True)
    first = tokenizer.convert_tokens_to_ids(">>en<<") if target else None
    # beam search could break ties differently
    output = model.generate(**batch, num_beams=1, forced_bos_token_id=first)
    texts = tokenizer.batch_decode(output, skip_special_tokens=True)
    add_arguments(parser := cli.Parser())
    words = [str(tmp_path / "run"), "--beam=1", "--threads=1", f"--data={data}"]
    engine, *_ = open_engine(parser.parse([*words, "--src=xx", "--tgt=en"]))
    # transformers omits <unk>, here " ⁇ ", like other special tokens
    translations = engine.translate(LINES, Direction("xx", "en"))
    assert texts == [text.replace(" ⁇ ", "").rstrip() for text in translations]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert ("forced_bos_token_id" in card, 'tokenizer([">>' in card) == (target, True)


def test_the_model_card_contains_the_record_of_the_run(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    make_trained_run(run, data)
    with (run / "config.yaml").open("a", encoding="utf-8") as file:
        file.write("  global-batch-tokens: 4096\nlr: 5e-4\n")
    request = {"checkpoints": [fingerprint(run / "checkpoints" / "checkpoint_best.pt")]}
    score = {"bleu": 31.234, "bleu_signature": "nrefs:1|tok:13a", "chrf": 55.5, "request": request}
    score |= {"split": "test", "lines": 1000, "beam": 5, "lenpen": 0.6, "updates": 7}
    part = {"average": 9.0, "directions": 1, "expected": 2, "missing": ["en-de"]}
    scores = {
        "test.checkpoint_best.beam4": score | part,
        "test.checkpoint_best.beam5": score,
        "test.checkpoint_last.beam5": {**score, "bleu": 1, "request": {"checkpoints": [1]}},
        "text.news-1a2b.test.checkpoint_best.beam5": {**score, "bleu": 4},
    }
    (run / "scores").mkdir()
    for name, content in scores.items():
        write_json(run / "scores" / f"{name}.json", content)
    assert export(run) == 0
    folder = run / "export" / "huggingface"
    assert {path.name for path in folder.iterdir()} == FILES
    text = (folder / "README.md").read_text(encoding="utf-8")
    for line in (
        "# German to English, deepnorm 3L-2L",
        "add a line `license:` to the metadata above.",
        "- test.checkpoint_best.beam5: BLEU 31.23, chrF 55.50; test set, 1,000 sentences, beam 5,"
        " lenpen 0.6, 7 updates; bleu: `nrefs:1|tok:13a`\n",
        "BLEU 9.00, chrF 55.50; test set, 1,000 sentences in 1 of 2 directions, INCOMPLETE (",
        "| lr | 5e-4 |",
        "| tokens per batch | 4096 |",
    ):
        assert line in text
    assert text.count(": BLEU") == 2
    head = huggingface_hub.ModelCard(text).data
    assert (head.language, head.library_name) == (["de", "en"], "transformers")
    results = {result.metric_type: result.metric_value for result in head.eval_results}
    assert results == {"bleu": 31.23, "chrf": 55.5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"residual_scheme": "rezero"}, "--residual-scheme rezero cannot become a stock"),
        ({"residual_scheme": "dlcl"}, "a learned"),
        ({"residual_scheme": "pre-ln"}, "the encoder is Pre-LN"),
        ({"layernorm_embedding": True}, "--layernorm-embedding has no counterpart in transformers"),
        ({"decoder_output_dim": 24}, "a model with several widths"),
        ({"activation_fn": "linear"}, "--activation-fn linear has no counterpart in transformers"),
        ({"arch": "deepnet_transformer_lm"}, "cannot translate with deepnet_transformer_lm"),
    ],
    ids=str,
)
def test_a_model_that_transformers_cannot_compute_is_refused_with_the_reason(
    options: dict[str, Any], message: str, tmp_path: Path, data: Path, refused: Refused
) -> None:
    make_trained_run(tmp_path / "run", data, **options)
    assert message in refused("export", tmp_path / "run", "--to=huggingface")
    assert not list((tmp_path / "run").glob("export/*"))
