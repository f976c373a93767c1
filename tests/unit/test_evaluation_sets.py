"""The test sets of the paper's table 3: their sizes and their published layouts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sacrebleu

from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation.sets import definition, make
from fairseq_deepnet.tools.languages import languages
from tests.support.corpus import write_lines
from tests.support.evaluation_sets import SENTENCES, flores101, ted


def text(folder: Path, name: str) -> list[str]:
    return list(read_lines(folder / name))


@pytest.mark.parametrize(
    ("name", "directions"),
    [("flores101", 87 * 86), ("ted28", 28 * 27), ("opus30", 6 * 5), ("wmt10", 2 * 9)],
)
def test_sets_have_the_sizes_of_the_paper(name: str, directions: int) -> None:
    content = definition(name)
    codes = set(content["languages"]) & set(languages())
    count = len(codes) * (len(codes) - 1) if name != "wmt10" else 2 * len(codes - {"en"})
    assert content["directions"] == directions == count


def test_wmt_test_sets_are_sacrebleus_and_of_the_years_that_the_paper_cites() -> None:
    test_sets = definition("wmt10")["test_sets"]
    assert {name[3:] for name in test_sets.values()} == {"14", "17", "18", "19"}
    for code, name in test_sets.items():
        assert {f"en-{code}", f"{code}-en"} <= set(sacrebleu.DATASETS[name].langpairs)


def test_flores_is_read_from_its_archive_in_the_codes_of_the_model(tmp_path: Path) -> None:
    raw = Path(shutil.make_archive(f"{tmp_path}/raw", "gztar", flores101(tmp_path)))
    out = tmp_path / "out"
    lines = make("flores101", raw, out, model=["fra", "de", "zho_simpl", "xx", "yi"])
    pairs = ["de-fra", "fra-de", "de-zho_simpl", "zho_simpl-de", "fra-zho_simpl", "zho_simpl-fra"]
    assert lines == dict.fromkeys(pairs, 3)
    assert text(out, "flores101.de-fra.de") == SENTENCES["de"]
    assert text(out, "flores101.de-fra.fra") == SENTENCES["fr"]
    assert text(out, "flores101.fra-zho_simpl.fra") == SENTENCES["fr"]
    assert text(out, "flores101.fra-zho_simpl.zho_simpl") == SENTENCES["zh"]
    assert sum(path.is_symlink() for path in out.iterdir()) == 9  # twelve sides, three texts


def test_both_directions_of_a_pair_share_its_opus_100_files(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    for code in ("de", "fr"):
        (raw / f"opus.de-fr-test.{code}").write_text(f"{code}\n", encoding="utf-8")
    assert make("opus30", raw, out, model=["fr", "de"]) == {"fr-de": 1, "de-fr": 1}
    assert text(out, "opus30.fr-de.fr") == text(out, "opus30.de-fr.fr") == ["fr"]


def test_ted_is_detokenised_and_pairs_contain_the_common_rows(tmp_path: Path) -> None:
    pytest.importorskip("sacremoses", reason="needs the extra moses")
    out = tmp_path / "out"
    lines = make("ted28", ted(tmp_path), out, model=["en", "fr", "zh", "de"])
    assert lines["en-fr"] == lines["fr-en"] == 2
    assert lines["en-zh"] == lines["de-zh"] == 2
    assert lines["fr-zh"] == 1
    assert text(out, "ted28.en-fr.en") == ["Thank you, Chris.", "No."]
    assert text(out, "ted28.en-fr.fr") == ["Merci, Chris.", "Non."]
    assert text(out, "ted28.en-zh.en")[1].startswith("\"It's good")
    assert text(out, "ted28.en-zh.zh") == ["谢谢你。", "很好"]


def test_wmt_is_read_from_sacrebleus_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """newstest2014 is one text for both directions; newstest2019 has one per direction."""
    en, fr, zh = (SENTENCES[code] for code in ("en", "fr", "zh"))
    cache = {
        "wmt14": {"en-fr": (en, fr), "fr-en": (fr, en)},
        "wmt19": {"en-zh": (en, zh), "zh-en": (["好。"], ["Yes."])},
    }
    for name, sides in cache.items():
        top = tmp_path / "sacrebleu" / name  # as sacreBLEU unpacks a test set
        for pair, (source, reference) in sides.items():
            for field in sacrebleu.DATASETS[name].fieldnames(pair):
                text_of = {"src": source, "ref": reference}
                content = text_of.get(field.split(":")[0], ["x"] * len(source))
                write_lines(top / f"{name}.{pair}.{field.replace(':', '-')}", content)
        monkeypatch.setattr(sacrebleu.DATASETS[name], "_outdir", str(top))
    lines = make("wmt10", None, tmp_path / "out", model=["zh", "en", "fr"])
    assert lines == {"en-fr": 3, "fr-en": 3, "en-zh": 3, "zh-en": 1}
    out = tmp_path / "out"
    assert text(out, "wmt10.en-fr.fr") == text(out, "wmt10.fr-en.fr") == fr
    assert text(out, "wmt10.en-zh.zh") == zh
    assert text(out, "wmt10.zh-en.zh") == ["好。"]
    monkeypatch.setattr(sacrebleu.DATASETS["wmt14"], "source", lambda pair: Path("/no").stat())
    with pytest.raises(ValueError, match=r"sacreBLEU cannot read wmt14 .*: on another machine"):
        make("wmt10", None, tmp_path / "other", model=["en", "fr"])


def test_a_second_call_reads_the_set_again_and_another_set_is_not_overwritten(
    tmp_path: Path,
) -> None:
    raw, out = flores101(tmp_path), tmp_path / "out"
    make("flores101", raw, out, model=["de", "en"])
    for path in raw.rglob("eng.devtest"):
        path.write_text("other\ntext\nhere\n", encoding="utf-8")
    make("flores101", raw, out, model=["de", "en"])
    assert text(out, "flores101.de-en.en") == ["other", "text", "here"]
    (raw / "devtest" / "deu.devtest").write_bytes(b"ja\n\xff\nnein\n")
    with pytest.raises(ValueError, match=r"deu\.devtest, line 2: not valid UTF-8"):
        make("flores101", raw, out, model=["de", "en"])
    with pytest.raises(ValueError, match="exists and contains something else"):
        make("flores101", raw, out, model=["de", "fr"])


@pytest.mark.parametrize(
    ("name", "raw", "model", "message"),
    [
        ("wmt10", None, ["de", "fr"], "the model supports no two languages"),
        ("ted28", "flores101_dataset", ["de", "en"], r"lacks 1 files: all_talks_test.tsv"),
    ],
)
def test_missing_languages_and_files_are_reported(
    tmp_path: Path, name: str, raw: str | None, model: list[str], message: str
) -> None:
    flores101(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        make(name, tmp_path / raw if raw else None, tmp_path / "out", model)
    assert not list(tmp_path.glob("out*"))
