"""scripts/quickstart.sh with stand-ins for its stages: order, resuming, failures; its page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fairseq_deepnet.experiments import quickstart
from fairseq_deepnet.experiments.quickstart import Result, read_result, summary, verdict
from fairseq_deepnet.tools.plotting.curves import Curves

ROOT = Path(__file__).resolve().parents[2]

# Stand-ins note that they were called. Training ends as FATE_<scheme> says.
TRAIN = r"""#!/usr/bin/env bash
echo "train $SCHEME depth $DEPTH seed $SEED threads $THREADS gpus $GPUS $*" >>"$CALLS"
mkdir -p "$RUN/checkpoints"
fate=FATE_${SCHEME/-/_}
case ${!fate:-learns} in
    learns) touch "$RUN/checkpoints/checkpoint_last.pt" "$RUN/done"; : >"$RUN/train.log" ;;
    diverges) echo "FloatingPointError: gradients are Nan/Inf" >"$RUN/train.log"; exit 1 ;;
    fails) echo "no memory"; exit 9 ;;
    lasts) echo $$ >"$RUN/pid"; sleep 60 & wait ;;
esac
"""
NOTE = '#!/usr/bin/env bash\necho "{} $*" >>"$CALLS"\n'
PYTHON = r"""#!/usr/bin/env bash
echo "python ${*:1:3}" >>"$CALLS"
case $1 in -c) echo 0 ;; *) echo "the page" ;; esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    scripts = tmp_path / "scripts"
    (scripts / "lib").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "quickstart.sh", scripts)
    shutil.copy(ROOT / "scripts" / "lib" / "common.sh", scripts / "lib")
    stand_ins = {
        scripts / "preprocess_sample.sh": NOTE.format("preprocess"),
        scripts / "train_sample.sh": TRAIN,
        scripts / "eval_bleu.sh": NOTE.format("eval"),
        tmp_path / "bin" / "python": PYTHON,
    }
    (tmp_path / "bin").mkdir()
    for path, text in stand_ins.items():
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return tmp_path


def environment(project: Path, **variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("DEPTH", "SEED", "GPUS", "OUT")}
    path = f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"
    calls = str(project / "calls")
    return {**kept, "PATH": path, "CALLS": calls, "DEEPNET_SKIP_SETUP": "1", **variables}


def start(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(project / "scripts" / "quickstart.sh"), *arguments]
    variables = {"THREADS": "1", **variables}
    return subprocess.run(
        command,
        env=environment(project, **variables),
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )


def calls(project: Path) -> list[str]:
    lines = (project / "calls").read_text(encoding="utf-8").splitlines()
    (project / "calls").unlink()
    return [line.replace(str(project), "HERE") for line in lines]


def test_help_names_every_variable(project: Path) -> None:
    result = start(project, "--help")
    assert result.returncode == 0
    for name in ("DEPTH", "SEED", "UPDATES", "DATA", "OUT", "GPUS", "THREADS"):
        assert f"  {name} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "variables"), [(["--depth"], {}), ([], {"DEPTH": "0"}), ([], {"SEED": "x"})]
)
def test_bad_usage_is_one_line(
    project: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    result = start(project, *arguments, **variables)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "error:" in result.stderr
    assert not (project / "runs").exists()


def test_steps_run_in_order_and_a_second_run_trains_nothing(project: Path) -> None:
    result = start(project)
    assert result.returncode == 0, result.stderr
    assert "the page" in result.stdout
    made = calls(project)
    assert made[0] == "preprocess "
    trainings = [call for call in made if call.startswith("train")]
    assert sorted(trainings) == [
        f"train {scheme} depth 18 seed 1 threads 1 gpus 0 " for scheme in ("deepnorm", "post-ln")
    ]
    rest = [call for call in made if call.startswith(("eval", "python -m"))]
    assert rest == [
        "eval HERE/runs/quickstart/deepnorm --max-len-a 2 --max-len-b 10",
        "eval HERE/runs/quickstart/post-ln --max-len-a 2 --max-len-b 10",
        "python -m fairseq_deepnet.cli plot",
        "python -m fairseq_deepnet.experiments.quickstart HERE/runs/quickstart",
    ]
    again = start(project)
    assert again.returncode == 0
    assert again.stdout == result.stdout
    assert not [call for call in calls(project) if call.startswith("train")]


def test_a_dry_run_writes_nothing(project: Path) -> None:
    before = sorted(project.rglob("*"))
    done = start(project, DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    assert "would train 18L-18L post-ln" in done.stderr
    assert sorted(project.rglob("*")) == before
    assert start(project, DRY_RUN="yes").returncode == 2


def test_another_depth_has_its_own_folder(project: Path) -> None:
    assert start(project, DEPTH="6", UPDATES="70").returncode == 0
    train = next(call for call in calls(project) if call.startswith("train deepnorm"))
    assert "depth 6" in train
    assert train.endswith("--max-update 70")
    assert (project / "runs" / "quickstart_6l_70updates" / "deepnorm" / "done").is_file()


def test_a_twin_that_diverges_is_a_result_and_is_not_trained_again(project: Path) -> None:
    result = start(project, FATE_post_ln="diverges")
    assert result.returncode == 0, result.stderr
    assert "the page" in result.stdout
    assert (project / "runs/quickstart/post-ln/diverged").is_file()
    evaluated = [call for call in calls(project) if call.startswith("eval")]
    assert len(evaluated) == 1
    assert "deepnorm" in evaluated[0]
    assert start(project).returncode == 0
    assert not [call for call in calls(project) if call.startswith("train")]


def test_a_twin_that_fails_otherwise_is_tried_again(project: Path) -> None:
    result = start(project, FATE_post_ln="fails")
    assert result.returncode == 0
    assert "ended with status 9" in result.stderr
    calls(project)
    assert start(project).returncode == 0
    trainings = [call for call in calls(project) if call.startswith("train")]
    assert len(trainings) == 1
    assert "post-ln" in trainings[0]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pids: list[int]) -> bool:
    for _ in range(6000):
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.1)
    return False


def test_a_deepnorm_model_that_fails_is_an_error_and_stops_the_twin(project: Path) -> None:
    result = start(project, FATE_deepnorm="fails", FATE_post_ln="lasts")
    assert result.returncode == 2
    assert "no memory" in result.stderr
    assert "DeepNorm model failed with status 9" in result.stderr
    assert "the page" not in result.stdout
    twin = project / "runs/quickstart/post-ln/pid"
    assert not twin.exists() or wait_until_gone([int(twin.read_text(encoding="utf-8"))])


def test_ctrl_c_stops_both_trainings(project: Path) -> None:
    variables = environment(project, FATE_deepnorm="lasts", FATE_post_ln="lasts", THREADS="1")
    process = subprocess.Popen(
        ["bash", str(project / "scripts" / "quickstart.sh")],
        env=variables,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    files = [project / "runs/quickstart" / s / "pid" for s in ("deepnorm", "post-ln")]
    while not all(f.is_file() and f.read_text(encoding="utf-8").strip() for f in files):
        assert process.poll() is None, "the script ended before its trainings began"
        time.sleep(0.1)
    pids = [int(f.read_text(encoding="utf-8")) for f in files]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "the same command goes on" in errors.splitlines()[-1]
    assert wait_until_gone(pids)


def curves(last: float) -> Curves:
    return Curves("x", [(20, 9.0), (1000, last)], [(1000, last)])


DEEP = Result("DeepNorm", curves(1.5), False, 95.0, 97.0, "nrefs:1", ("He eats.",) * 4)


@pytest.mark.parametrize(
    ("twin", "expected"),
    [
        (Result("Post-LN", curves(8.2), False, 1.0), "DeepNorm learnt to translate in 1,000 upd"),
        (Result("Post-LN", curves(1.5), False, 94.5), "Both models trained at this depth: they"),
        (Result("Post-LN", curves(1.9), False, 88.0), "DeepNorm is 7.0 BLEU ahead"),
        (Result("Post-LN", curves(1.4), False, 98.0), "Post-LN is 3.0 BLEU ahead"),
        (Result("Post-LN", curves(1.4), True), "Post-LN diverged at about update 1,000"),
        (Result("Post-LN", Curves("x"), False), "ended early and left no model"),
    ],
    ids=["stalls", "trains", "lags", "leads", "diverges", "fails"],
)
def test_the_verdict_follows_from_the_numbers(twin: Result, expected: str) -> None:
    said = verdict(DEEP, twin)
    assert expected in said
    if "learnt to translate" not in expected:
        assert "did not" not in said


def test_two_models_that_learnt_nothing_are_not_said_to_have_trained() -> None:
    deep = Result("DeepNorm", curves(4.5), False, 0.5)
    said = verdict(deep, Result("Post-LN", curves(7.5), False, 0.0))
    assert "Neither model learnt to translate in 1,000 updates" in said


def test_the_page_shows_scores_and_translations_of_both() -> None:
    twin = Result("Post-LN", curves(8.25), True)
    texts = (["Er isst."] * 4, ["He eats!"] * 4)
    page = summary(DEEP, twin, "18L-18L", texts)
    assert "18L-18L" in page
    assert "4 held-out" in page
    rows = [row.split() for row in page.splitlines() if row.startswith(("DeepNorm ", "Post-LN "))]
    assert rows[0] == ["DeepNorm", "95.0", "97.0", "1.50", "1.50", "1,000"]
    assert rows[1] == ["Post-LN", "-", "-", "8.25", "8.25", "1,000"]
    for part in ("source     Er isst.", "DeepNorm   He eats.", "(no model)", "reference  He eats!"):
        assert part in page


def test_a_result_is_read_from_the_score_of_the_quickstart(tmp_path: Path) -> None:
    scores = tmp_path / "scores"
    scores.mkdir()
    record = {"bleu": 12.5, "chrf": 30.0, "bleu_signature": "sig", "hypotheses": "new.txt"}
    (scores / "new.txt").write_text("a\nb\n", encoding="utf-8")
    other = scores / "test.checkpoint_best.beam5.lenpen1.json"
    other.write_text(json.dumps({**record, "bleu": 1.0}), encoding="utf-8")
    (scores.parent / f"{quickstart.SCORE}.json").write_text(json.dumps(record), encoding="utf-8")
    result = read_result(tmp_path, "DeepNorm")
    assert (result.bleu, result.hypotheses, result.updates) == (12.5, ("a", "b"), 0)


def test_what_comes_next_names_scripts_that_exist() -> None:
    text = quickstart.WHERE_NEXT
    named = {word for word in text.split() if word.startswith("scripts/")}
    assert len(named) >= 4
    assert all((ROOT / name).is_file() for name in named)
