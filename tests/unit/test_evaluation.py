"""`deepnet evaluate`: from a run or a checkpoint to scores, with fake engines."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.records import write_json
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import evaluate as module
from fairseq_deepnet.tools.evaluation.directions import Job, finish, translate_all
from fairseq_deepnet.tools.evaluation.evaluate import find_texts
from fairseq_deepnet.tools.evaluation.scoring import score
from fairseq_deepnet.tools.scores import read_scores
from fairseq_deepnet.tools.trained_model import average_checkpoints, choose_model, find_data
from fairseq_deepnet.tools.translation.engines import Engine
from tests.support.corpus import write_lines
from tests.support.evaluation import Dictionary, work_here
from tests.support.runs import SENTENCES, TRANSLATIONS, make_checkpoint, make_run
from tests.support.shell import Refused
from tests.support.trained import make_trained_run


@pytest.fixture
def run_folder(tmp_path: Path, data: Path) -> Path:
    return make_run(tmp_path / "run", data)


Evaluate = Callable[..., Any]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Dictionary:
    engine = Dictionary()
    work_here(monkeypatch, engine)
    return engine


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str], engine: Engine) -> Evaluate:
    """Return a function that calls `deepnet evaluate` in this process."""

    def call(target: str | Path, *extra: str, **settings: str) -> Any:
        options = {"processes": "1", "gpus": "0", **settings}
        words = [f"--{key}={value}" for key, value in options.items()]
        status = cli.main(["evaluate", *words, str(target), "--", *extra])
        caught = capsys.readouterr()
        return subprocess.CompletedProcess(words, status, caught.out, caught.err)

    return call


def test_the_best_checkpoint_is_scored_and_a_second_run_does_nothing(
    evaluate: Evaluate, engine: Dictionary, run_folder: Path
) -> None:
    first = evaluate(run_folder, "--max-len-b", "30")
    assert first.returncode == 0, first.stderr
    assert sorted(engine.inputs) == sorted(SENTENCES)
    assert "de-en: truncated 1 lines that were too long for the model" in first.stderr

    name = run_folder / "scores" / "test.checkpoint_best.beam5.lenpen1.max-len-b30"
    scores = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
    expected = score(TRANSLATIONS, SENTENCES)
    assert {key: scores[key] for key in expected} == expected
    assert (scores["updates"], scores["lines"]) == (20, 4)
    assert Path(f"{name}.txt").read_text(encoding="utf-8").splitlines() == TRANSLATIONS
    (line,) = first.stdout.splitlines()
    assert line.startswith(f"BLEU {expected['bleu']:.2f}  chrF {expected['chrf']:.2f}  test, 4 sen")
    assert expected["bleu_signature"] in line

    second = evaluate(run_folder, "--max-len-b", "30")
    assert second.stdout == first.stdout
    assert "already scored" in second.stderr
    assert len(engine.inputs) == 4

    # another model with the same name has its own score
    make_checkpoint(run_folder / "checkpoints" / "checkpoint_best.pt", 30)
    third = evaluate(run_folder, "--max-len-b", "30")
    assert "(update 30)" in third.stdout
    assert len(engine.inputs) == 8


def test_a_model_of_the_reverse_direction_is_scored_in_its_own_direction(
    tmp_path: Path, data: Path
) -> None:
    task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
    make_trained_run(tmp_path / "run", data, about=task)
    folder = find_data(choose_model(tmp_path / "run", 0), None)
    sides = find_texts(folder, "test")[Direction("en", "de")]
    assert [path.name for path in sides] == ["test.en", "test.de"]
    (tmp_path / "test.de-en.en.bin").touch()
    assert DataFolder(tmp_path, folder.record).binarised_source("test")[0].is_file()


def test_a_checkpoint_that_training_replaces_before_it_is_read_is_refused(
    evaluate: Evaluate, engine: Engine, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_and_load(jobs: Any, facts: Any, load: Callable[..., Engine], *sizes: int) -> None:
        make_checkpoint(run_folder / "checkpoints" / "checkpoint_best.pt", 30)
        load(cpu=True)

    monkeypatch.setattr(module, "translate_all", replace_and_load)
    monkeypatch.setattr(module, "Translator", lambda *words: engine)
    result = evaluate(run_folder)
    assert result.returncode == 2
    assert "checkpoint_best.pt was replaced before it was read" in result.stderr


def test_other_settings_have_other_scores_and_a_copied_run_keeps_its_scores(
    evaluate: Evaluate, engine: Dictionary, run_folder: Path, tmp_path: Path
) -> None:
    paths = [run_folder / "checkpoints" / f"checkpoint_1_{n}.pt" for n in (10, 20)]
    average_checkpoints(paths, mean := paths[0].with_name("average_2.pt"))
    assert evaluate(run_folder).returncode == 0
    assert evaluate(run_folder, "--max-len-a", "0", "--max-len-b=3").returncode == 0
    assert "average of 2 checkpoints" in evaluate(mean, beam="1").stdout
    assert "|tok:char|" in evaluate(run_folder, tokenizer="char").stdout
    names = sorted(path.stem for path in (run_folder / "scores").glob("*.json"))
    assert names == [
        "test.average_2.beam1.lenpen1",
        "test.checkpoint_best.beam5.lenpen1",
        "test.checkpoint_best.beam5.lenpen1.max-len-a0.max-len-b3",
        "test.checkpoint_best.beam5.lenpen1.tok-char",
    ]
    copy = shutil.copytree(run_folder, tmp_path / "copy", copy_function=shutil.copyfile)
    count = len(engine.inputs)
    assert "already scored" in evaluate(copy).stderr
    assert len(engine.inputs) == count
    make_checkpoint(copy / "checkpoints" / "checkpoint_best.pt", 30)
    assert evaluate(run_folder, out=f"{tmp_path}/out").returncode == 0
    refused = evaluate(copy, out=f"{tmp_path}/out")
    assert f"is a score of {run_folder}/checkpoints/checkpoint_best.pt" in refused.stderr
    assert evaluate(copy).returncode == 0  # its own scores may be out of date


def test_data_of_another_run_is_refused(evaluate: Evaluate, run_folder: Path, data: Path) -> None:
    digests = {"dict.de.txt": "0" * 64}
    facts = {"folder": "data/own.de-en", "dictionaries_sha256": digests}
    write_json(run_folder / "environment.json", {"data": facts})
    result = evaluate(run_folder, data=str(data))
    assert result.returncode == 2
    assert "has other words or subwords" in result.stderr
    assert "data/own.de-en" in result.stderr


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ("/nowhere", {}, "there is no run or checkpoint /nowhere"),
        ("RUN", {"split": "valid"}, "has no text of the valid set: choose another with --split"),
        ("RUN", {"gpus": "64"}, "GPUS=64, but"),
        ("RUN", {"directions": "de-en,fr-en"}, "no test text for fr-en, only for de-en"),
        ("RUN", {"beam": 0}, "--beam: '0' is not a positive integer"),
        ("RUN", {"processes": -1}, "--processes: '-1' is not a positive integer"),
        ("RUN", {"lenpen": "nan"}, "--lenpen: nan is not finite"),
        ("RUN", {"spm": "none"}, "scores need text, not tokens"),
        ("RUN", {"data": "data/missing"}, "there is no data folder data/missing;"),  # relative
    ],
)
def test_bad_input_is_refused_in_one_line(
    refused: Refused, run_folder: Path, target: str, settings: dict[str, str], message: str
) -> None:
    options = [f"--{key}={value}" for key, value in ({"gpus": "0"} | settings).items()]
    assert message in refused("evaluate", target.replace("RUN", str(run_folder)), *options)


def write_text_folder(place: Path, *names: str, lines: list[str] = SENTENCES) -> Path:
    for name in names:
        write_lines(place / name, lines)
    return place


def test_the_summary_contains_earlier_scores_that_are_up_to_date(
    evaluate: Evaluate, run_folder: Path, data: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(data, tmp_path / "many")
    trained = ["de-en", "en-de"]
    directions = {"train": trained, "test": trained}
    record = {"languages": ["de", "en"], "directions": directions, "lines": {"train": {"de-en": 4}}}
    (other / "corpus.json").write_text(json.dumps(record), encoding="utf-8")
    (other / "languages.txt").write_text("de\nen\n", encoding="utf-8")
    write_text_folder(other / "text", "test.de-en.de", "test.de-en.en")

    def summed(**settings: str) -> tuple[int, int]:
        assert evaluate(run_folder, data=str(other), **settings).returncode == 0
        (score,) = read_scores(run_folder)
        return score.facts["directions"], score.facts["expected"]

    assert summed(directions="de-en") == (1, 2)
    assert summed() == (2, 2)
    assert summed(directions="de-en") == (2, 2)
    write_text_folder(other / "text", "test.de-en.de", lines=TRANSLATIONS)
    assert summed(directions="de-en") == (1, 2)


def test_scores_on_other_text_have_names_of_their_own(
    evaluate: Evaluate, run_folder: Path, tmp_path: Path
) -> None:
    for place in ("a", "b"):
        folder = tmp_path / place / "news"
        write_text_folder(folder, "test.de-en.de", "test.de-en.en")
        assert evaluate(run_folder, text=str(folder)).returncode == 0
    first, second = read_scores(run_folder)
    assert first.name != second.name
    for name in (first.name, second.name):
        assert name.startswith("text.news-")
        assert name.endswith(".test.checkpoint_best.beam5.lenpen1")
    assert first.of.startswith("test text of the folder news-")


LANGUAGES = ["cs", "de", "en"]
MANY = DataFolder(Path("many"), {"languages": LANGUAGES, "directions": {}})


def test_every_direction_of_a_folder_has_its_own_text(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no text of the news set"):
        find_texts(MANY, "news", tmp_path)
    write_text_folder(tmp_path, "news.cs-en.cs", "news.en-cs.en", "news.en-cs.cs")
    with pytest.raises(FileNotFoundError, match=r"there is no .*news\.cs-en\.en"):
        find_texts(MANY, "news", tmp_path)
    write_text_folder(tmp_path, "news.cs-en.en", "news.en-fr.en")
    texts = find_texts(MANY, "news", tmp_path)
    sources = {str(pair): source.name for pair, (source, _) in texts.items()}
    assert sources == {"cs-en": "news.cs-en.cs", "en-cs": "news.en-cs.en"}


def test_an_epoch_contains_every_training_pair_once_per_direction(tmp_path: Path) -> None:
    directions = {"train": ["cs-en", "de-en", "en-cs", "en-de"]}
    lines = {"train": {"cs-en": 70, "de-en": 30}}
    record = {"languages": LANGUAGES, "directions": directions, "lines": lines}
    folder = DataFolder(tmp_path, record)
    assert folder.task_options()["virtual-data-size"] == "200"
    assert folder.task_options({"lang-pairs": "cs-en"})["virtual-data-size"] == "70"
    with pytest.raises(ValueError, match="no training text for en-fr"):
        folder.task_options({"lang-pairs": "en-fr,cs-en"})


def test_translations_of_parts_are_in_the_order_of_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch, Dictionary())
    job = job_of(tmp_path, "de-en")
    lines = ["a" * (7 * number % 50) + str(number) for number in range(1000)]
    for file in (job.source, job.reference):
        write_lines(file, lines)
    translate_all([job], {"beam": 5}, Dictionary, threads=1, processes=2, gpus=0)
    assert list(read_lines(job.record.with_suffix(".txt"))) == lines
    record = json.loads(job.record.read_text(encoding="utf-8"))
    assert (record["chrf"], record["lines"], record["beam"]) == (pytest.approx(100), 1000, 5)
    assert job.read()


def job_of(place: Path, name: str) -> Job:
    """Return a job with one line of Chinese on both sides."""
    direction = Direction.parse(name)
    texts = [f"news.{name}.{language}" for language in direction]
    write_text_folder(place, *texts, lines=["我喜欢吃红色的苹果。"])
    record = {"languages": list(direction), "directions": {}, "lowercase": True}
    options = {"beam": 5, "split": "news", "tokenizer": None}
    paths = [place / text for text in texts]
    return Job(direction, *paths, place / f"{direction}.json", DataFolder(place, record), options)


def test_sides_of_different_lengths_and_empty_sides_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, "de-en")
    for source, target, counts in (("one\ntwo\n", "one\n", "2 and 1"), ("", "", "0 and 0")):
        job.source.write_text(source, encoding="utf-8")
        job.reference.write_text(target, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"{job.source} and {job.reference} have {counts} li"):
            job.lines()


def test_a_score_is_out_of_date_once_a_text_changes(tmp_path: Path) -> None:
    job = job_of(tmp_path, "de-zh")
    assert not job.read()
    scores = finish(job, {}, job.lines(), 0)
    assert "|case:lc|eff:no|tok:zh|" in scores["bleu_signature"]
    assert "|case:lc|" in scores["chrf_signature"]
    assert job.read() == scores
    for text in (job.source, job.reference):
        content = text.read_bytes()
        text.write_text("another line\n", encoding="utf-8")
        assert not job.read()
        text.write_bytes(content)


def test_a_score_of_moses_tokens_depends_on_tokens_and_binarised_text(tmp_path: Path) -> None:
    names = ("text/test.de", "text/test.en", "tokenised/test.en", "test.de-en.de.bin")
    for name in (*names, "test.de-en.de.idx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("unchanged\n", encoding="utf-8")
    folder = DataFolder(tmp_path, {"source": "de", "target": "en", "tokenisation": "moses"})
    ((direction, texts),) = find_texts(folder, "test").items()
    job = Job(direction, *texts, tmp_path / "score.json", folder, {"split": "test"})
    before = job.request()
    for path in job.files:
        path.write_text("changed\n", encoding="utf-8")
        assert job.request() != before, path
        path.write_text("unchanged\n", encoding="utf-8")
    assert len(job.files) == 5
