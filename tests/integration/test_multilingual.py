"""Many language pairs through the real scripts: raw text, training, every direction scored."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.translation.engines import Translator
from tests.support.runs import SENTENCES, TINY
from tests.support.shell import run_script

CPU = {"GPUS": "0", "THREADS": "1", "PROCESSES": "2", "DEEPNET_SKIP_SETUP": "1"}


def script(name: str, *arguments: str, **variables: object) -> subprocess.CompletedProcess[str]:
    environment = CPU | {key: str(value) for key, value in variables.items()}
    done = run_script(name, *arguments, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained for two updates on en-xx and en-yy; xx-yy is zero-shot."""
    place = tmp_path_factory.mktemp("multilingual")
    sides = {
        "en": SENTENCES * 8,
        "xx": [line.upper() for line in SENTENCES * 8],
        "yy": [" ".join(reversed(line.split())) for line in SENTENCES * 8],
    }
    rows = []
    for language, lines in sides.items():
        (place / f"text.{language}").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
    for pair in ("en\txx", "en\tyy"):
        rows += [f"{split}\t{pair}\t{place}/text" for split in ("train", "valid", "test")]
    rows.append(f"test\txx\tyy\t{place}/text")
    (place / "pairs.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    data = place / "data"
    script("preprocess.sh", "pairs", TABLE=place / "pairs.tsv", OUT=data, VOCAB_SIZE=70, WORKERS=1)
    options = [*TINY, "--max-update", "2", "--total-num-update", "2", "--warmup-updates", "1"]
    options += ["--num-workers", "0"]
    script("train.sh", "multi30k_multilingual", *options, DATA=data, RUN=place / "run")
    return place / "run"


def test_every_direction_is_scored_once(run: Path) -> None:
    first = script("eval_bleu.sh", str(run), "--", "--max-len-b", "8")
    folder = run / "scores" / "test.checkpoint_best.beam5.lenpen1.max-len-b8"
    records = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*-*.json")
    }
    assert sorted(records) == ["en-xx", "en-yy", "xx-en", "xx-yy", "yy-en", "yy-xx"]
    for name, record in records.items():
        assert record["zero_shot"] == (name in ("xx-yy", "yy-xx"))
        assert record["lines"] == 32
        assert (folder / f"{name}.txt").read_text(encoding="utf-8").count("\n") == 32
    for text in ("zero-shot", "xx"):
        assert text in first.stdout
    assert (folder / "table.md").is_file()
    (folder / "xx-yy.json").unlink()
    again = script("eval_bleu.sh", str(run), "--", "--max-len-b", "8")
    assert "already scored: 5 of 6 in " in again.stderr
    assert "test set: xx-yy, " in again.stderr
    assert again.stdout == first.stdout


@pytest.mark.slow
def test_ctranslate2_scores_every_direction_as_fairseq_does(run: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    knobs = {"BEAM": 2, "DIRECTIONS": "en-yy,xx-yy"}
    script("eval_bleu.sh", str(run), **knobs)
    script("eval_bleu.sh", str(run), ENGINE="ctranslate2", QUANTIZATION="float32", **knobs)
    name = "test.checkpoint_best.beam2.lenpen1"
    for direction in ("en-yy", "xx-yy"):
        texts = [
            (run / "scores" / folder / f"{direction}.txt").read_text(encoding="utf-8")
            for folder in (name, f"{name}.ctranslate2-float32")
        ]
        assert texts[0] == texts[1]
    words = ["translate", str(run), str(run.parent / "text.en"), "--engine", "ctranslate2"]
    assert cli.main(words) == 2, "it does not say into which language"
    assert cli.main([*words, "--src", "en", "--tgt", "yy", "--beam", "1"]) == 0


def test_the_target_language_changes_what_the_model_reads(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataFolder.open(run.parent / "data")
    checkpoint = run / "checkpoints" / "checkpoint_last.pt"
    translator = Translator(checkpoint, folder, ["--beam", "1", "--max-len-b", "5"], cpu=True)
    encoder = translator.models[0].encoder
    seen: list[list[int]] = []
    forward = encoder.forward

    def watched(src_tokens: torch.Tensor, *rest: Any, **options: Any) -> Any:
        seen.append(src_tokens[0].tolist())
        return forward(src_tokens, *rest, **options)

    monkeypatch.setattr(encoder, "forward", watched)
    for name in ("en-xx", "en-yy"):
        translator.translate(["A dog runs."], Direction.parse(name))
    symbols = [translator.task.source_dictionary[line[0]] for line in seen]
    assert symbols == ["__xx__", "__yy__"]
    assert seen[0][1:] == seen[1][1:]


def test_ctranslate2_is_told_the_target_language_by_its_token(run: Path, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    folder = DataFolder.open(run.parent / "data")
    checkpoint = run / "checkpoints" / "checkpoint_best.pt"
    words = ["export", str(run), "--to", "ctranslate2", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 0
    facts = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))[
        "language_tokens"
    ]
    tokens = {language: f"__{language}__" for language in ("en", "xx", "yy")}
    assert facts == {"source": "tgt", "target": False, "tokens": tokens}

    options = ["--beam", "2", "--max-len-b", "6"]
    translator = Translator(checkpoint, folder, options, cpu=True)
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    for name in ("en-xx", "en-yy", "yy-xx"):
        direction = Direction.parse(name)
        pieces = [line.split() for line in folder.encode(SENTENCES, direction.source)]
        told = [[tokens[direction.target], *line] for line in pieces]
        found = engine.translate_batch(told, beam_size=2, max_decoding_length=6)
        theirs = folder.decode([" ".join(one.hypotheses[0]) for one in found], direction.target)
        assert theirs == translator.translate(SENTENCES, direction)
