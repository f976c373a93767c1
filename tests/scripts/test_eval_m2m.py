"""scripts/eval_m2m.sh from a published layout to the table, with a fake translator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.evaluation_sets import flores101
from tests.support.shell import FakeBin, run_script

EVALUATE = """
if [[ $1 == evaluate ]]; then
    out=$OUT text=$TEXT
    echo "SET $SPLIT $TOKENIZER $BEAM $LENPEN $TEXT" >&2
    mkdir -p "$out/flores101.checkpoint_best.beam5.lenpen1"
    while read -r pair; do
        echo '{"bleu": 12.0, "chrf": 30.0, "lines": 3, "bleu_signature": "tok:flores101"}' \\
            >"$out/flores101.checkpoint_best.beam5.lenpen1/$pair.json"
    done <"$text/directions.txt"
    touch "$out/flores101.checkpoint_best.beam5.lenpen1/summary.json"
    exit 0
fi
exec PYTHON -m fairseq_deepnet.cli "$@"
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of a model that knows de, en and zh."""
    data, run = tmp_path / "data", tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    data.mkdir()
    record = {"languages": ["de", "en", "zh"], "directions": {}, "lines": {}}
    (data / "corpus.json").write_text(json.dumps(record), encoding="utf-8")
    (run / "config.yaml").write_text(f"recipe:\n  data: {data}\n", encoding="utf-8")
    (run / "checkpoints" / "checkpoint_best.pt").touch()
    return run


def test_a_set_goes_from_its_published_files_to_the_table(
    fake_bin: FakeBin, run_folder: Path, tmp_path: Path
) -> None:
    fake_bin.add("deepnet", EVALUATE.replace("PYTHON", sys.executable))
    env = {"SET": "flores101", "RAW": str(flores101(tmp_path)), "GPUS": "0"}
    result = run_script(
        "eval_m2m.sh", run_folder, "--max-len-b", "50", env=env, path=fake_bin.path()
    )
    assert result.returncode == 0, result.stderr
    made, evaluated, table = fake_bin.calls("deepnet")
    assert made[:2] == ["evaluation-set", "flores101"]
    assert table[0] == "directions"
    text = run_folder / "scores" / "flores101" / "text"
    assert f"SET flores101 flores101 5 1 {text}\n" in result.stderr
    assert evaluated == ["evaluate", "--variables", str(run_folder), "--", "--max-len-b", "50"]
    assert (text / "flores101.de-zh.zh").read_text(encoding="utf-8").startswith("两只狗")
    assert "6 of 7,482 directions" in result.stderr
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in result.stdout.splitlines()
    ]
    assert ["M2M-100, 48 layers (12B)", "13.6"] in rows
    assert ["this model", "12.00 (over 6 of 7,482 directions)"] in rows


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        ([], {}, "which model? name a run folder or a checkpoint"),
        (["/nowhere"], {}, "there is no run or checkpoint /nowhere"),
        (["RUN"], {"SET": "flores"}, "SET is 'flores'; choose flores101, ted28, opus30 or wmt10"),
        (["RUN"], {"RAW": "/nowhere"}, "bash scripts/download.sh flores101, or set RAW"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    fake_bin: FakeBin, run_folder: Path, words: list[str], env: dict[str, str], message: str
) -> None:
    fake_bin.add("deepnet")
    words = [word.replace("RUN", str(run_folder)) for word in words]
    result = run_script("eval_m2m.sh", *words, env=env, path=fake_bin.path())
    assert result.returncode == 2
    (error,) = result.stderr.splitlines()
    assert message in error
    assert fake_bin.calls("deepnet") == []
