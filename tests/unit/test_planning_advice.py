"""`deepnet plan`: the search for options that fit, what it prints, and errors of one line."""

import dataclasses
import math
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.models.checkpoint_memory import FREE_SHARE
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.planning.advice import Advice, advise
from fairseq_deepnet.tools.planning.estimates import Plan, estimate


def config(**options: configs.Value) -> configs.Config:
    """A 12L-12L training on 16,384 tokens per update."""
    given: dict[str, configs.Value] = {
        "arch": "deepnet_transformer",
        "encoder-layers": 12,
        "decoder-layers": 12,
        "share-all-embeddings": True,
        "criterion": "label_smoothed_cross_entropy",
        "optimizer": "adam",
        "max-tokens": 4096,
        "max-update": 1000,
    }
    found = given | {name.replace("_", "-"): value for name, value in options.items()}
    return configs.Config("test", found, {"global-batch-tokens": "4 x 4096"})


def plan_for(memory_gib: float, gpus: int = 1, **options: configs.Value) -> Plan:
    return estimate(config(**options), gpus, memory_gib, teraflops=100, vocabulary=8000)


def advice_for(memory_gib: float, **options: configs.Value) -> Advice:
    return advise(plan_for(memory_gib, **options))


def test_smaller_micro_batches_come_first_and_keep_the_global_batch() -> None:
    wanted = plan_for(80)
    smaller = advice_for(wanted.needed_gib - 0.5)
    assert smaller.fits
    assert smaller.options == {"max-tokens": "2048", "update-freq": "8"}
    assert smaller.plan.training.tokens == wanted.training.tokens


def test_each_step_is_tried_only_where_those_before_do_not_fit() -> None:
    steps = advice_for(0.5).steps
    names = [step.name for step in steps]
    assert names == [
        "smaller micro-batches",
        "--checkpoint-memory",
        "--bf16",
        "--memory-efficient-bf16",
        "--optimizer adafactor",
    ]
    last = [step.plan for step in steps]
    for number in range(1, len(last)):
        # a device just large enough for this step's smallest micro-batch stops at it or before
        found = advice_for(last[number].needed_gib * 1.0001)
        assert found.fits
        assert len(found.steps) <= number + 1


def again(advice: Advice, **options: configs.Value) -> Plan:
    """The plan of the options that were found, on top of those that it was asked for with."""
    found: dict[str, Any] = {
        name.replace("-", "_"): True if value == "true" else value
        for name, value in advice.options.items()
    }
    return plan_for(advice.wanted.memory_gib, **(options | found))


@pytest.mark.parametrize("room", [1.001, 1.1, 1.5])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_tokens": None, "batch_size": 128}, {"batch_size": 16}],
    ids=["by tokens", "by sentences", "by both"],
)
def test_the_options_found_fit_when_they_are_applied(
    options: dict[str, configs.Value], room: float
) -> None:
    needed = advice_for(0.5, **options).plan.needed_gib
    advice = advice_for(needed * room, **options)
    planned = again(advice, **options)
    assert planned.fits
    assert planned.needed_gib == pytest.approx(advice.plan.needed_gib)
    assert planned.training == advice.plan.training


@pytest.mark.parametrize("room", [1.001, 1.05, 1.2])
def test_a_device_is_given_to_checkpointing_as_auto_takes_it_but_where_that_is_too_little(
    room: float,
) -> None:
    deep = {"arch": "deepnet_transformer_tiny", "encoder_layers": 200, "decoder_layers": 200}
    needed = plan_for(80, checkpoint_activations_every="auto", max_tokens=512, **deep).needed_gib
    advice = advice_for(needed * room, max_tokens=512, **deep)
    assert advice.plan.checkpoint_gib is not None
    share = math.floor(100 * FREE_SHARE * needed * room) / 100
    if room < 1.1:
        assert share < needed
        assert needed <= advice.plan.checkpoint_gib <= advice.wanted.memory_gib
    else:
        assert advice.plan.checkpoint_gib == share
    assert advice.plan.needed_gib <= advice.plan.checkpoint_gib  # so that training does not warn


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["plan", *words])
    out, err = capsys.readouterr()
    return code, out, err


BIG = ("--arch", "deepnet_transformer_opus100_1000", "--vocabulary", "250002")


def test_host_memory_is_that_of_a_node_however_many_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every process of a node builds the weights: 8 x 3,806,209,024 x 4 bytes."""
    few, many = (run(capsys, *BIG, "--gpus", gpus)[1] for gpus in ("4", "32"))
    assert "host memory: 56.7 GiB while 4 processes of a node build the weights" in few
    assert "host memory: 113.4 GiB while 8 processes of a node build the weights" in many
    sharded = run(capsys, *BIG, "--gpus", "32", "ddp-backend=fully_sharded", "fp16=true")[1]
    assert "host memory: 14.2 GiB while only rank 0 builds the weights in fp32" in sharded
    assert "56.7 GiB while rank 0 saves a checkpoint" in sharded


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a config"),
        (("--arch", "lstm", "--vocabulary", "100", "share-all-embeddings=null"), "lstm"),
        (("no_such_config",), "no config"),
        (("sample", "--vocabulary", "many"), "a number of entries"),
        (("sample", "--vocabulary", "3"), "--vocabulary 3"),
        (("sample", "--vocabulary", "90,60"), "--share-all-embeddings needs one vocabulary"),
        (("sample", "--vocabulary", "90", "--memory", "0"), "--memory 0"),
        (("sample", "--vocabulary", "90", "--utilisation", "30"), "--utilisation 30"),
        (("sample", "--vocabulary", "90", "amp=true"), "--amp is not covered"),
        (("sample", "--vocabulary", "90", "--gpus", "0", "fp16=true"), "needs a GPU"),
        (("sample", "--vocabulary", "90", "--measure", "--teraflops", "1"), "contradict"),
        (("sample", "--data", "/nowhere"), "/nowhere"),
        (("sample", "--vocabulary", "90", "max-tokens=null"), "max-tokens"),
    ],
    ids=str,
)
def test_what_the_user_can_mend_is_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith("deepnet plan: error:")]
    assert code == 2
    assert not out
    assert len(lines) == 1
    assert message in lines[0]


def test_several_devices_that_are_too_small_are_to_split_the_model() -> None:
    """Where the parameters fit whole they stay so; an unsharded device would not do."""
    plain = plan_for(80, gpus=8, bf16=True, ddp_backend="legacy_ddp", checkpoint_activations=True)
    fixed = plain.memory.persistent + plain.memory.gradients
    split = plan_for(80, gpus=8, bf16=True, ddp_backend="fully_sharded")
    assert split.memory.persistent < fixed / 7
    found = advise(dataclasses.replace(plain, memory_gib=plain.needed_gib * 0.6))
    assert found.fits
    assert found.options["ddp-backend"] == "fully_sharded"
    names = [step.name for step in found.steps]
    assert names.index("--ddp-backend fully_sharded --no-reshard-after-forward") > 0
    assert found.is_exact(found.steps[-1])


def test_a_model_that_is_split_already_is_offered_nothing_that_looks_at_whole_matrices() -> None:
    steps = advise(plan_for(0.1, gpus=4, ddp_backend="fully_sharded")).steps
    assert [step.name for step in steps] == [
        "smaller micro-batches",
        "--checkpoint-memory",
        "--bf16",
    ]
