"""`deepnet m2m`: from published files to the table, without a model."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation import evaluate
from fairseq_deepnet.tools.evaluation.directions import summarise
from tests.support.evaluation_sets import flores101
from tests.support.runs import make_checkpoint
from tests.support.shell import Refused

SCORE = {"bleu": 12.0, "chrf": 30.0, "lines": 3, "bleu_signature": "tok:flores101"}
SCORE |= {"request": {"texts": ["digest"]}}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Return the run of a model for de, en and zh."""
    data, run = tmp_path / "data", tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    data.mkdir()
    record = {"languages": ["de", "en", "zh"], "directions": {}, "lines": {}}
    (data / "corpus.json").write_text(json.dumps(record), encoding="utf-8")
    (data / "spm.model").touch()
    (data / "languages.txt").touch()
    (run / "config.yaml").write_text(f"recipe:\n  data: {data}\n", encoding="utf-8")
    (run / "checkpoints" / "checkpoint_best.pt").touch()
    return run


@pytest.mark.parametrize("only", ["", "de-en"])
def test_a_published_set_is_scored_and_tabulated(
    only: str,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[Namespace] = []

    def score_directions(args: Namespace, model: object, data: object, folder: Path) -> str:
        calls.append(args)
        assert folder.name.endswith(".checkpoint_best.beam5.lenpen1.max-len-b50.tok-flores101")
        folder.mkdir(parents=True)
        pairs = {path.name.split(".")[1] for path in args.text.glob("flores101.*")}
        scored = [args.directions] if args.directions else pairs
        records = {Direction.parse(pair): SCORE if pair in scored else {} for pair in pairs}
        return summarise(folder, records, [])

    monkeypatch.setattr(evaluate, "score_directions", score_directions)
    words = ["m2m", str(run_folder), f"--raw={flores101(tmp_path)}", "--gpus=0"]
    words += [f"--directions={only}"] if only else []
    assert cli.main([*words, "--", "--max-len-b", "50"]) == 0
    (args,) = calls
    text = run_folder / "scores" / "flores101" / "text"
    assert (args.split, args.tokenizer, args.beam, args.lenpen) == ("flores101", "flores101", 5, 1)
    assert (args.text, args.extra, args.gpus) == (text, ["--max-len-b", "50"], "0")
    assert (text / "flores101.de-zh.zh").read_text(encoding="utf-8").startswith("两只狗")
    printed = capsys.readouterr()
    assert "6 of 7,482 directions, 18 lines" in printed.err
    lines = printed.out.split("\n")
    rows = [[cell.strip() for cell in row.strip("| ").split("|")] for row in lines]
    assert ["M2M-100, 48 layers (12B)", "13.6"] in rows
    bleu = f"12.00 (over {1 if only else 6} of 7,482 directions)"
    assert ["this model, beam 5, tok:flores101", bleu] in rows


def test_a_folder_without_a_record_is_read_with_its_subword_model(
    run_folder: Path, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "data" / "corpus.json").unlink()
    make_checkpoint(run_folder / "checkpoints" / "checkpoint_best.pt", 20)  # names no languages
    for words, message in (
        (["--spm=x", f"--raw={flores101(tmp_path)}"], "the model supports no two languages of flo"),
        (["--raw=/nowhere"], "run `deepnet download flores101`, or set --raw"),
        (["--set=wmt10", "--raw=mine"], "--raw mine: sacreBLEU provides this test set"),
    ):
        assert message in refused("m2m", run_folder, *words)
