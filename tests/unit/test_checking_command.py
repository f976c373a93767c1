"""`deepnet check` as it is called: new models, configs, runs, checkpoints; exit status and JSON."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import fairseq.models
import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import nn

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import save_checkpoint
from fairseq_deepnet.tools import fairseq_options, standalone
from tests.support.checks import M, N

SMALL = [
    *("--encoder-embed-dim", "32", "--decoder-embed-dim", "32", "--encoder-layers", "3"),
    *("--encoder-ffn-embed-dim", "64", "--decoder-ffn-embed-dim", "64", "--decoder-layers", "2"),
]


def check(*words: object) -> int:
    return cli.main(["check", *map(str, words)])


def trained(arch: str = "deepnet_transformer", **options: Any) -> tuple[Any, Namespace]:
    """A model 64 wide and 6L-4L, and its arguments as fairseq saves them."""
    args = Namespace(arch=arch, encoder_layers=N, decoder_layers=M, **options)
    for side in ("encoder", "decoder"):
        vars(args).update({f"{side}_embed_dim": 64, f"{side}_ffn_embed_dim": 128})
        vars(args).update({f"{side}_attention_heads": 4})
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    task = standalone.VocabularyTask(64)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task), args


def save(path: Path, pair: tuple[Any, Namespace], updates: int = 0, **changes: Any) -> Path:
    """A checkpoint as fairseq writes it, with other arguments in `changes`."""
    model, args = pair
    state = {
        "args": None,
        "cfg": {"model": Namespace(**{**vars(args), **changes}), "task": {"data": "somewhere"}},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": updates}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(state, path)
    return path


def stir(model: nn.Module) -> None:
    """Move all weights, as training does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def test_a_new_model_passes_and_the_report_says_what_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert check("--arch", "deepnet_transformer", *SMALL, "--json", report) == 0
    text = capsys.readouterr().out
    assert "Encoder: 3 layers, deepnorm" in text
    assert "\njudged as its own arguments say\n" in text
    assert "LN(1.113 x + G(x))" in text
    assert text.rstrip().endswith("Verdict: as claimed")
    content = json.loads(report.read_text(encoding="utf-8"))
    assert content["verdict"] == "fine"
    judged = [row for row in content["sides"][0]["rows"] if row["ratio"] is not None]
    assert all(abs(row["ratio"] - 1) <= row["tolerance"] < 0.1 for row in judged)
    assert len(judged) == 6  # q, k, v, out, fc1, fc2
    assert content["sides"][1]["alpha"] == content["sides"][1]["expected_alpha"] == "1.565"


def test_a_claim_that_does_not_hold_ends_with_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    words = ["--arch", "transformer", *SMALL, "--claim", "deepnorm", "--json", report]
    assert check(*words) == 1
    text = capsys.readouterr().out
    assert "\njudged as --claim deepnorm says\n" in text
    assert "Verdict: OFF, " in text
    content = json.loads(report.read_text(encoding="utf-8"))
    assert content["verdict"] == "off"
    assert {fault["kind"] for fault in content["faults"]} == {"weights", "biases", "residual"}
    assert check("--arch", "transformer", *SMALL) == 0


def test_a_config_and_options_that_win(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["encoder-layers=2", "--decoder-layers", "4", "--residual-scheme=rezero"]
    assert check("multi30k_tiny", *words, "--vocabulary", "100") == 0
    text = capsys.readouterr().out
    assert "Encoder: 2 layers, rezero, variant layer" in text
    assert "Decoder: 4 layers" in text
    assert "100 words" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to check"),
        (["no_such_thing"], "no_such_thing"),
        (["--arch", "no_such_arch"], "no_such_arch"),
        (["--arch", "deepnet_transformer", "--encoder-lairs", "3"], "encoder-lairs"),
        (["--arch", "deepnet_transformer", "--residual-scheme", "deepnrom"], "deepnrom"),
        (["--arch", "deepnet_transformer", "stray"], "stray"),
        (["--arch", "lstm"], "no Transformer layers were found"),
        (["--arch", "deepnet_transformer", "--vocabulary", "3"], "--vocabulary 3"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_checkpoint_of_update_0_is_judged_wholly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(save(tmp_path / "checkpoint1.pt", trained())) == 0
    assert "Verdict: as claimed\n" in capsys.readouterr().out
    broken = trained()
    broken[0].encoder.layers[1].fc1.weight.data.mul_(2)
    assert check(save(tmp_path / "checkpoint1.pt", broken)) == 1


def test_trained_weights_are_shown_and_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = trained()
    stir(pair[0])
    folder = tmp_path / "run"
    save(folder / "checkpoints" / "checkpoint_last.pt", pair, updates=300)
    assert check(folder) == 0
    text = capsys.readouterr().out
    assert "after 300 updates" in text
    assert "shown, not judged" in text
    assert "Verdict: as claimed (initial weights not judged)" in text


def test_a_trained_models_alpha_is_still_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = trained()
    record = dict(pair[1].residual_record)
    record["alphas"] = {**record["alphas"], "decoder": 1.0}
    path = save(tmp_path / "checkpoint_last.pt", pair, 300, residual_record=record)
    assert check(path) == 1
    text = capsys.readouterr().out
    assert "decoder record: alpha 1, expected 1.86121 (deepnorm for 6L-4L)." in text
    assert "decoder self_attn, encoder_attn, ffn: LN(x + G(x)), expected LN(1.861 x + G(x))" in text


def test_a_record_of_other_depths_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = trained()
    record = {**pair[1].residual_record, "depths": [N + 1, M]}
    assert check(save(tmp_path / "c.pt", pair, 300, residual_record=record)) == 1
    assert "encoder record: trained with 7 layers, expected the 6 in the file" in (
        capsys.readouterr().out
    )


def test_a_checkpoint_without_a_record_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = trained()
    del pair[1].residual_record
    assert check(save(tmp_path / "c.pt", pair, 300)) == 1
    assert "no residual_record" in capsys.readouterr().out


def test_missing_and_unknown_parameters_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "c.pt", trained(), 300)
    state = torch.load(path, weights_only=True)
    state["model"]["encoder.spare"] = state["model"].pop("encoder.layers.0.fc1.bias")
    save_checkpoint(state, path)
    assert check(path) == 1
    text = capsys.readouterr().out
    assert "encoder.layers.0.fc1.bias: not in the file" in text
    assert "encoder.spare: not in the model" in text


def test_a_checkpoint_of_a_model_that_fairseq_configures_by_dataclass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformer_lm: its arguments are saved as a dictionary, and name no arch."""
    words = ["DATA", "--task=language_modeling", "--arch=transformer_lm", "--decoder-layers=2"]
    words += [
        "--decoder-embed-dim=64",
        "--decoder-ffn-embed-dim=128",
        "--decoder-attention-heads=4",
    ]
    config = convert_namespace_to_omegaconf(fairseq_options.parse_training(words))
    task = standalone.VocabularyTask(64)
    model = fairseq.models.build_model(config.model, task)
    saved = OmegaConf.to_container(config, resolve=True, enum_to_str=True)["model"]
    assert isinstance(saved, dict)
    path = tmp_path / "checkpoint_last.pt"
    state = {"args": None, "cfg": {"model": saved}, "model": model.state_dict()}
    save_checkpoint({**state, "optimizer_history": [{"num_updates": 0}]}, path)
    assert check(path) == 0
    text = capsys.readouterr().out
    assert "Decoder: 2 layers, post-ln, stock initialisation" in text
    assert "Verdict: as claimed\n" in text
