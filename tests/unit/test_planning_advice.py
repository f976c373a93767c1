"""`deepnet plan`: the search for options that fit, and one-line errors."""

import dataclasses
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.footprint.memory import MEANINGS, Memory
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.planning.estimates import Plan, Step, advise, estimate
from tests.support.shell import Refused


def plan_for(memory_gib: float, gpus: int = 1, **options: configs.Value) -> Plan:
    """Plan a 12L-12L run with 16,384 tokens per update."""
    values: dict[str, configs.Value] = {
        "arch": "deepnet_transformer",
        "encoder-layers": 12,
        "decoder-layers": 12,
        "share-all-embeddings": True,
        "criterion": "label_smoothed_cross_entropy",
        "optimizer": "adam",
        "max-tokens": 4096,
    }
    values |= {name.replace("_", "-"): value for name, value in options.items()}
    config = configs.Config("test", values, {"global-batch-tokens": "4 x 4096"})
    return estimate(config, gpus, memory_gib, (8000, 8000))


def advice_for(memory_gib: float, **options: configs.Value) -> list[Step]:
    return advise(plan_for(memory_gib, **options))


def test_smaller_micro_batches_come_first_and_preserve_the_global_batch() -> None:
    plan = plan_for(80)
    smaller = advice_for(plan.needed_gib - 0.5)
    assert smaller[-1].plan.fits
    assert smaller[-1].options == {"max-tokens": "2048", "update-freq": "8"}
    assert smaller[-1].plan.training.tokens == plan.training.tokens
    names = ["smaller micro-batches", "--checkpoint-activations-every auto"]
    assert [step.name for step in advice_for(0.5)] == names
    steps = advise(plan_for(0.1, gpus=4, ddp_backend="fully_sharded"))
    assert [step.name for step in steps] == names  # a sharded model stays sharded


@pytest.mark.parametrize("room", [1.001, 1.1, 1.5])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_tokens": None, "batch_size": 128}, {"arch": "transformer"}],
    ids=["ours by tokens", "by sentences", "stock"],
)
def test_the_suggested_options_fit_when_applied(
    options: dict[str, configs.Value], room: float
) -> None:
    needed = advice_for(0.5, **options)[-1].plan.needed_gib
    advice = advice_for(needed * room, **options)
    changes: dict[str, Any] = {
        name.replace("-", "_"): True if value == "true" else value
        for name, value in advice[-1].options.items()
    }
    planned = plan_for(needed * room, **(options | changes))
    assert planned.fits
    assert planned.memory == advice[-1].plan.memory
    assert planned.training == advice[-1].plan.training


def test_sharding_is_suggested_for_several_devices() -> None:
    """An unsharded model does not fit into this memory."""
    plain = plan_for(80, gpus=8, bf16=True, ddp_backend="legacy_ddp", checkpoint_activations=True)
    fixed = plain.memory.persistent + plain.memory.gradients
    split = plan_for(80, gpus=8, bf16=True, ddp_backend="fully_sharded")
    assert split.memory.persistent < fixed / 7
    advice = advise(dataclasses.replace(plain, memory_gib=plain.needed_gib * 0.6))
    assert advice[-1].plan.fits
    assert advice[-1].options["ddp-backend"] == "fully_sharded"
    names = [step.name for step in advice]
    assert names.index("--ddp-backend fully_sharded --no-reshard-after-forward") > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a config"),
        (("--arch", "lstm", "--vocabulary", "100", "share-all-embeddings=null"), "lstm"),
        (("sample", "--vocabulary", "many"), "a number of entries"),
        (("sample", "--vocabulary", "90", "--length", "0"), "--length 0"),
        (("sample", "--vocabulary", "3"), "--vocabulary 3: must be at least 5"),
        (("sample", "--vocabulary", "90", "--memory", "-3"), "--memory -3.0: must be at least"),
        (("sample", "--encoder-layers", "3"), "such as encoder-layers=3"),
        (("--arch", "transformer", "--vocabulary", "9", "encoder-layers=0"), "at least 1"),
        (("sample", "--vocabulary", "90,60"), "--share-all-embeddings needs one vocabulary"),
        (("sample", "--vocabulary", "90", "amp=true"), "--amp is not covered"),
        (("--arch=transformer", "--vocabulary=9", "no-cross-attention=true"), "--no-cross-att"),
        (("sample", "--vocabulary", "90", "--gpus", "0", "fp16=true"), "needs a GPU"),
        (("sample", "--data", "/nowhere"), "/nowhere has no corpus.json; give its dictionaries'"),
        (("sample", "recipe.data=/"), "/ has no corpus.json"),
        (("multi30k_lm", "--vocabulary", "90"), "only encoder-decoders can be planned"),
        (("multi30k_masked_lm", "--vocabulary", "90"), "only encoder-decoders can be planned"),
    ],
    ids=str,
)
def test_bad_input_is_a_one_line_error(
    words: tuple[str, ...], message: str, refused: Refused
) -> None:
    assert message in refused("plan", *words)


def test_suggestions_for_a_thousand_layers_on_an_80_gb_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["plan", "opus100_1000", "--gpus", "8"]) == 0
    out = capsys.readouterr().out
    assert "The run needs 86.41 GiB" in out
    assert "78.9 GiB: --ddp-backend legacy_ddp, 512 x 128" in out
    assert "The run fits with: max-tokens=512 update-freq=128 ddp-backend=legacy_ddp\n" in out
    assert "planned for 8 GPUs with 79 GiB (change with --gpus and --memory)" in out
    for part in ("encoder", "activations", "projection"):
        assert part in out


def test_the_plan_explains_every_part_of_the_memory() -> None:
    parts = {field.name for field in dataclasses.fields(Memory)} - {"moments"}
    assert parts | {"peak"} == MEANINGS.keys()
