"""fairseq's own commands with the plugin, from the project's root and from elsewhere."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import fairseq_deepnet.models  # noqa: F401  (allows the classes in checkpoints)
from tests.integration.conftest import SMALL, TRAIN, RunCommand
from tests.support.shell import ROOT

ARCH = ["--arch", "deepnet_transformer"]


@pytest.fixture(scope="session")
def trained(
    tiny_data: Path, run_command: RunCommand, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Checkpoint after two updates, trained from the project's root as in the README."""
    folder = tmp_path_factory.mktemp("trained")
    options = ["--user-dir", "fairseq_deepnet", *ARCH, *SMALL, *TRAIN, "--save-dir", folder]
    # with --eval-bleu, fairseq also saves arrays in the checkpoint
    options += ["--eval-bleu", "--eval-bleu-detok", "space"]
    options += ["--eval-bleu-args", '{"beam": 1, "max_len_b": 3}']
    result = run_command("fairseq-train", tiny_data, *options, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert (
        "deepnorm(2L-2L, variant paper, encoder alpha 1.006, decoder alpha 1.565)" in result.stdout
    )
    return folder / "checkpoint_best.pt"


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the project with a copy of the plugin, as if it were not installed."""
    folder = tmp_path_factory.mktemp("elsewhere")
    copy = folder / "plugin" / "fairseq_deepnet"
    shutil.copytree(ROOT / "fairseq_deepnet", copy)
    with (copy / "__init__.py").open("a", encoding="utf-8") as code:
        code.write("import sys\nprint('loaded the copy', file=sys.stderr)\n")
    return folder


def test_generate_translates_and_aligns_every_sentence_from_elsewhere(
    trained: Path, tiny_data: Path, run_command: RunCommand, elsewhere: Path
) -> None:
    plugin = elsewhere / "plugin" / "fairseq_deepnet"
    options = ["--user-dir", plugin, "--path", trained, "--beam", 3, "--max-len-b", 10, "--cpu"]
    options += ["--print-alignment", "hard"]
    result = run_command("fairseq-generate", tiny_data, *options, cwd=elsewhere)
    assert result.returncode == 0, result.stderr
    numbers = sorted(int(number) for number in re.findall(r"^H-(\d+)", result.stdout, re.MULTILINE))
    assert numbers == list(range(12))
    assert "loaded the copy" in result.stderr
    assert len(re.findall(r"^A-\d+\t\d+-\d+", result.stdout, re.MULTILINE)) == 12


def test_interactive_translates_typed_sentences(
    trained: Path, tiny_data: Path, run_command: RunCommand, elsewhere: Path
) -> None:
    plugin = elsewhere / "plugin" / "fairseq_deepnet"
    options = ["--user-dir", plugin, "--path", trained, "--max-len-b", 10, "--cpu"]
    options += ["--source-lang", "xx", "--target-lang", "yy"]
    result = run_command(
        "fairseq-interactive", tiny_data, *options, cwd=elsewhere, stdin="w1 w2 w3\nw4\n"
    )
    assert result.returncode == 0, result.stderr
    assert re.findall(r"^S-(\d)\t(.*)$", result.stdout, re.MULTILINE) == [
        ("0", "w1 w2 w3"),
        ("1", "w4"),
    ]


def test_validate_repeats_the_loss_of_training(
    trained: Path, tiny_data: Path, run_command: RunCommand
) -> None:
    options = ["--user-dir", ROOT / "fairseq_deepnet", "--path", trained, "--cpu"]
    options += ["--task", "translation", "--valid-subset", "valid", "--max-tokens", 200]
    result = run_command("fairseq-validate", tiny_data, *options, cwd=trained.parent)
    assert result.returncode == 0, result.stderr
    loss = re.search(r"valid on 'valid' subset \| loss ([\d.]+)", result.stderr + result.stdout)
    assert loss, result.stderr
    best = torch.load(trained, weights_only=True)["extra_state"]["best"]
    assert float(loss.group(1)) == pytest.approx(best, abs=2e-3)


def test_a_bad_option_ends_in_one_line_and_writes_nothing(
    tiny_data: Path, run_command: RunCommand, tmp_path: Path
) -> None:
    options = ["--user-dir", "fairseq_deepnet", *ARCH, *SMALL, *TRAIN, "--decoder-layers", "0"]
    options += ["--save-dir", tmp_path / "run"]
    result = run_command("fairseq-train", tiny_data, *options, cwd=ROOT)
    assert result.returncode == 2
    errors = [line for line in result.stderr.splitlines() if "error" in line.lower()]
    assert len(errors) == 1
    assert errors[0].startswith("fairseq_deepnet: error: --decoder-layers 0: must be at least 1")
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["fairseq_deepnet", "my-clone"])
def test_the_user_dir_may_be_the_clone_whatever_its_name(
    name: str, run_command: RunCommand, tmp_path: Path
) -> None:
    clone = tmp_path / name
    clone.mkdir()
    shutil.copy(ROOT / "__init__.py", clone)
    (clone / "fairseq_deepnet").symlink_to(ROOT / "fairseq_deepnet")
    options = ["--user-dir", clone, *ARCH, "--encoder-layers=0"]
    result = run_command("fairseq-train", tmp_path, *options, cwd=tmp_path)
    assert result.returncode != 0
    assert "--encoder-layers 0: must be at least 1" in result.stderr
