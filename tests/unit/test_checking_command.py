"""`deepnet check` on the command line: targets, exit status and JSON."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import fairseq.models
import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import save_checkpoint
from fairseq_deepnet.tools import fairseq_options, standalone
from tests.support.checks import SIZE, model_of
from tests.support.models import small, stir
from tests.support.shell import Refused

SMALL = [
    *("encoder-embed-dim=32", "decoder-embed-dim=32", "encoder-layers=3", "decoder-layers=2"),
    *("encoder-ffn-embed-dim=64", "decoder-ffn-embed-dim=64"),
]


def check(*words: object) -> int:
    return cli.main(["check", *map(str, words)])


def save(path: Path, model: Any, updates: int = 0, **changes: Any) -> Path:
    """Save a checkpoint as fairseq does, with `changes` to the arguments."""
    args = Namespace(arch="deepnet_transformer", **small(**SIZE))
    ARCH_CONFIG_REGISTRY[args.arch](args)
    record = {"residual_record": model.args.residual_record}
    state = {
        "args": None,
        "cfg": {"model": Namespace(**{**vars(args), **record, **changes})},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": updates}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(state, path)
    return path


def test_a_new_model_passes_and_the_report_contains_the_measurements(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert check("--arch", "deepnet_transformer", *SMALL, "--json", report) == 0
    text = capsys.readouterr().out
    assert "Encoder: 3 layers, deepnorm" in text
    assert "\njudged by its own arguments\n" in text
    assert "LN(1.113 x + G(x))" in text
    assert text.rstrip().endswith("Verdict: as claimed")
    content = json.loads(report.read_text(encoding="utf-8"))
    assert content["verdict"] == "fine"
    judged = [row for row in content["sides"][0]["rows"] if row["ratio"] is not None]
    assert all(abs(row["ratio"] - 1) <= row["tolerance"] < 0.1 for row in judged)
    assert len(judged) == 6  # q, k, v, out, fc1, fc2
    alpha = content["sides"][1]["facts"][0]
    assert (alpha["measured"], alpha["expected"]) == ("1.565", "1.565")


def test_the_exit_status_of_a_false_claim_is_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    words = ["--arch", "transformer", *SMALL, "--claim", "deepnorm", "--json", report]
    assert check(*words) == 1
    assert "\njudged by --claim deepnorm\n" in capsys.readouterr().out
    content = json.loads(report.read_text(encoding="utf-8"))
    assert content["verdict"] == "off"
    assert {fault["kind"] for fault in content["faults"]} == {"weights", "biases", "residual"}
    assert check("--arch", "transformer", *SMALL) == 0


def test_options_override_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["encoder-layers=2", "decoder-layers=4", "residual-scheme=rezero"]
    assert check("multi30k_tiny", *words, "--vocabulary", "100") == 0
    text = capsys.readouterr().out
    assert "Encoder: 2 layers, rezero, variant layer" in text
    assert "Decoder: 4 layers" in text
    assert "100 words" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a model"),
        (["no_such_thing"], "'no_such_thing' is neither a file nor a name in configs/"),
        (["runs/mnie"], "there is no run or checkpoint runs/mnie"),
        (["--arch", "no_such_arch"], "no_such_arch"),
        (["--arch", "deepnet_transformer", "encoder-lairs=3"], "encoder-lairs"),
        (["--arch", "deepnet_transformer", "residual-scheme=deepnrom"], "deepnrom"),
        (["--arch", "lstm"], "no Transformer layers were found"),
        (["--arch", "deepnet_transformer", "--vocabulary", "3"], "--vocabulary 3"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    words: list[str], message: str, refused: Refused
) -> None:
    assert message in refused("check", *words)


def test_a_checkpoint_of_update_0_is_judged_completely(tmp_path: Path, refused: Refused) -> None:
    model = model_of()
    # the file of pretrained embeddings is not needed any more
    assert check(save(tmp_path / "checkpoint1.pt", model, encoder_embed_path="/gone")) == 0
    model.encoder.layers[1].fc1.weight.data.mul_(2)
    assert check(save(tmp_path / "checkpoint1.pt", model)) == 1
    path = save(tmp_path / "checkpoint1.pt", model, encoder_layers=1)
    assert "does not match its own arguments: Error(s) in" in refused("check", path)


def test_trained_weights_are_shown_and_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of()
    stir(model)
    save(tmp_path / "run" / "checkpoints" / "checkpoint_last.pt", model, updates=300)
    assert check(tmp_path / "run") == 0
    text = capsys.readouterr().out
    assert "after 300 updates" in text
    assert "Verdict: as claimed (initial weights not judged)" in text


def test_a_recorded_alpha_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of()
    stir(model)
    record = {**model.args.residual_record, "alphas": {"decoder": 1.0}}
    path = save(tmp_path / "checkpoint_last.pt", model, 300, residual_record=record)
    assert check(path) == 1
    expected = "decoder self_attn, encoder_attn, ffn: LN(x + G(x)), expected LN(1.861 x + G(x))"
    assert expected in capsys.readouterr().out


def test_a_checkpoint_must_match_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "c.pt", model_of(), 300)
    state = torch.load(path, weights_only=True)
    del state["model"]["encoder.layers.0.fc1.bias"]
    save_checkpoint(state, path)
    assert check(path) == 2
    assert "encoder.layers.0.fc1.bias" in capsys.readouterr().err


def test_a_checkpoint_with_a_dataclass_config_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check transformer_lm, whose arguments are saved as a dictionary without an arch."""
    words = ["DATA", "--task=language_modeling", "--arch=transformer_lm", "--decoder-layers=2"]
    words += ["--decoder-embed-dim=64", "--decoder-ffn-embed-dim=128"]
    words += ["--decoder-attention-heads=4"]
    config = convert_namespace_to_omegaconf(fairseq_options.parse_training(words))
    model = fairseq.models.build_model(config.model, standalone.VocabularyTask(64))
    saved = OmegaConf.to_container(config, resolve=True, enum_to_str=True)["model"]
    assert isinstance(saved, dict)
    path = tmp_path / "checkpoint_last.pt"
    state = {"args": None, "cfg": {"model": saved}, "model": model.state_dict()}
    save_checkpoint({**state, "optimizer_history": [{"num_updates": 0}]}, path)
    assert check(path) == 0
    assert "Decoder: 2 layers, post-ln, stock initialisation" in capsys.readouterr().out
