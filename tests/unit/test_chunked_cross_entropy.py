"""Chunked criterions against fairseq's, and their memory."""

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.distributed import ModuleProxyWrapper
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)
from fairseq_deepnet.criterions import chunked, cross_entropy
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.tools.standalone import VocabularyTask
from tests.support.models import SYMBOLS, build_model

VOCABULARY = 4 + SYMBOLS
TASK = SimpleNamespace(target_dictionary=VocabularyTask(VOCABULARY).target_dictionary)
PAD = 1
SMOOTHED = cross_entropy.LabelSmoothedCrossEntropyCriterion
Sample = dict[str, Any]


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split the batch's 15 real targets into chunks of 6, 6 and 3."""
    monkeypatch.setattr(chunked, "CPU_ROWS", (6, 6))
    monkeypatch.setattr(chunked, "CPU_BLOCK", 48)


@pytest.fixture
def sample(batch: dict[str, Tensor]) -> Sample:
    inputs = batch["prev_output_tokens"]
    target = inputs.roll(-1, dims=1).masked_fill(inputs.eq(PAD), PAD)
    return {"net_input": batch, "target": target, "ntokens": int(target.ne(PAD).sum())}


def run(criterion: Any, model: nn.Module, sample: Sample) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the log and the gradients of a training step with a loss scale."""
    model.zero_grad()
    loss, size, log = criterion(model, sample)
    (loss * 3.0 / size).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {**log, "returned": loss.detach(), "size": size}, copy.deepcopy(grads)


def assert_alike(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6, msg=name)


def compare(ours: Any, theirs: Any, model: nn.Module, sample: Sample) -> None:
    log, grads = run(ours, model, sample)
    expected_log, expected = run(theirs, model, sample)
    assert_alike(log, expected_log)
    assert_alike(grads, expected)


MODELS = {
    "ours": {},
    "stock": {"arch": "transformer"},
    "tied": {"share_all_embeddings": True},
    "stock, tied": {"arch": "transformer", "share_decoder_input_output_embed": True},
    "narrower output": {"decoder_output_dim": 20},
    "checkpointed": {"checkpoint_activations": True, "share_all_embeddings": True},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_log_and_gradients_equal_fairseqs(
    options: dict[str, Any], smoothing: float, sample: Sample
) -> None:
    model = build_model(**options)
    inputs = (TASK, False, smoothing)
    compare(SMOOTHED(*inputs), LabelSmoothedCrossEntropyCriterion(*inputs), model, sample)


def test_ignored_prefixes_and_reported_accuracy_equal_fairseqs(sample: Sample) -> None:
    model = build_model()
    settings = {"sentence_avg": True, "label_smoothing": 0.2}
    settings |= {"ignore_prefix_size": 2, "report_accuracy": True}
    with torch.no_grad():  # makes some predictions correct
        model.decoder.output_projection.weight[sample["target"][1, 3]] *= 5
    ours = SMOOTHED(TASK, **settings)
    theirs = LabelSmoothedCrossEntropyCriterion(TASK, **settings)
    compare(ours, theirs, model, sample)
    assert 0 < run(ours, model, sample)[0]["n_correct"] < run(ours, model, sample)[0]["total"]


@pytest.mark.parametrize("arch", ["deepnet_transformer_lm", "deepnet_transformer"])
def test_plain_cross_entropy_equals_fairseqs(arch: str, sample: Sample) -> None:
    if arch.endswith("_lm"):
        sample["net_input"] = {"src_tokens": sample["net_input"]["prev_output_tokens"]}
    ours, theirs = cross_entropy.CrossEntropyCriterion, CrossEntropyCriterion
    compare(ours(TASK, False), theirs(TASK, False), build_model(arch), sample)


def test_a_bias_of_the_output_layer_has_its_gradient(sample: Sample) -> None:
    model = build_model()
    model.decoder.output_projection = nn.Linear(32, VOCABULARY)
    inputs = (TASK, False, 0.1)
    compare(SMOOTHED(*inputs), LabelSmoothedCrossEntropyCriterion(*inputs), model, sample)


def test_frozen_parts_get_no_gradient(sample: Sample) -> None:
    model = build_model()
    model.decoder.output_projection.weight.requires_grad_(False)
    criterion = SMOOTHED(TASK, False, 0.1)
    criterion(model, sample)[0].backward()
    assert model.decoder.output_projection.weight.grad is None
    assert model.decoder.layers[0].fc1.weight.grad is not None


def test_data_parallel_treats_an_untied_output_layer_as_used(
    tmp_path: Path, sample: Sample
) -> None:
    """Otherwise torch would raise an error or not exchange the layer's gradient."""
    model = build_model(share_decoder_input_output_embed=False)
    criterion = SMOOTHED(TASK, False, 0.1)
    expected = run(criterion, model, sample)[1]
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        for _ in range(2):
            model.zero_grad()
            loss, size, _ = criterion(ModuleProxyWrapper(wrapped), sample)
            (loss * 3.0 / size).backward()
    finally:
        torch.distributed.destroy_process_group()
    assert_alike({name: p.grad for name, p in model.named_parameters()}, expected)


def test_losses_per_token_equal_fairseqs(sample: Sample) -> None:
    model = build_model()
    ours = SMOOTHED(TASK, False, 0.1, 0, True)
    theirs = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1, 0, True)
    assert torch.equal(ours(model, sample, reduce=False)[0], theirs(model, sample, reduce=False)[0])


def reference(x: Tensor, w: Tensor, target: Tensor, smoothing: float) -> Tensor:
    log_p = (x @ w.t()).log_softmax(dim=1)
    each = smoothing / (w.size(0) - 1)
    rows = target.ne(PAD)
    nll = -log_p.gather(1, target[:, None])[rows].sum()
    return (1 - smoothing - each) * nll - each * log_p[rows].sum()


def test_impossible_targets_have_a_finite_loss() -> None:
    x = torch.tensor([[200.0, 0.0], [1.0, 1.0]], requires_grad=True)
    w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], requires_grad=True)
    target = torch.tensor([2, 0])
    result = chunked.smoothed_cross_entropy(x, w, None, target, 0.0, PAD)
    assert float(result.nll) == pytest.approx(400 + math.log(2 + math.exp(-2)) + 0.0, rel=1e-6)
    result.loss.backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(50, 16, generator=generator).to(dtype)
    w = (0.3 * torch.randn(40, 16, generator=generator)).to(dtype)
    target = torch.randint(0, 40, (50,), generator=generator)
    exact = [t.double().requires_grad_() for t in (x, w)]
    reference(*exact, target, 0.1).mul(1024).backward()
    inputs = [t.requires_grad_() for t in (x, w)]
    result = chunked.smoothed_cross_entropy(*inputs, None, target, 0.1, PAD)
    assert result.loss.dtype == torch.float32
    result.loss.mul(1024).backward()
    for ours, theirs in zip(inputs, exact, strict=True):
        assert ours.grad.dtype == dtype
        # each number in the table is rounded once, by up to 2^-8 in bf16 or 2^-11 in fp16
        bound = 4 * torch.finfo(dtype).eps * theirs.grad.abs().max()
        assert (ours.grad.double() - theirs.grad).abs().max() < bound


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("training", [True, False])
def test_no_tensor_is_as_large_as_the_table(training: bool) -> None:
    tokens, width, vocabulary = 300, 4, 150
    x = torch.randn(tokens, width, requires_grad=training)
    w = torch.randn(vocabulary, width, requires_grad=training)
    target = torch.randint(2, vocabulary, (tokens,))
    with Largest() as largest, torch.set_grad_enabled(training):
        loss = chunked.smoothed_cross_entropy(x, w, None, target, 0.1, PAD).loss
        if training:
            loss.backward()
    # x is the largest tensor; a table of 6 rows has 900 elements, the full table 45,000
    assert largest.elements == tokens * width
    with Largest() as largest:
        reference(x, w, target, 0.1)
    assert largest.elements >= tokens * vocabulary


def test_padding_is_not_computed() -> None:
    x, w = torch.randn(8, 4), torch.randn(20, 4)
    target = torch.tensor([5, PAD, 6, PAD, PAD, 7, PAD, PAD])
    x[target == PAD] = math.nan
    assert torch.isfinite(chunked.smoothed_cross_entropy(x, w, None, target, 0.1, PAD).loss)


def test_padding_is_counted_once_before_the_model_runs(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting synchronises with a GPU and would later wait for the whole forward pass."""
    events: list[str] = []
    count = chunked.counted

    def counted(*inputs: Any) -> Tensor:
        events.append("padding")
        return count(*inputs)

    for module in (chunked, cross_entropy):
        monkeypatch.setattr(module, "counted", counted)
    model = build_model()
    model.encoder.register_forward_pre_hook(lambda *_: events.append("model"))
    SMOOTHED(TASK, False, 0.1)(model, sample)
    assert events == ["padding", "model"]


def test_a_batch_with_only_padding_has_no_loss() -> None:
    x, w = torch.randn(2, 4, requires_grad=True), torch.randn(20, 4, requires_grad=True)
    loss = chunked.smoothed_cross_entropy(x, w, None, torch.full((2,), PAD), 0.1, PAD).loss
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.any()
    assert not w.grad.any()


def test_adaptive_softmax_is_an_error(sample: Sample) -> None:
    model = build_model("transformer", adaptive_softmax_cutoff="20,40", adaptive_softmax_dropout=0)
    criterion = SMOOTHED(TASK, False, 0.1)
    with pytest.raises(ConfigurationError, match="--adaptive-softmax-cutoff"):
        criterion(model, sample)


def test_fp16_does_not_lose_the_gradients_of_a_large_vocabulary() -> None:
    """For 200,000 words 1 / V is subnormal in fp16, before the loss scale is applied."""
    torch.manual_seed(1)
    vocabulary = 200_000
    x = torch.randn(4, 8).half()
    weight = (torch.randn(vocabulary, 8) * 0.01).half()
    target = torch.tensor([4, 5, 6, 7])
    gradients = []
    for dtype in (torch.float16, torch.float64):
        inputs = (x.to(dtype), weight.to(dtype), torch.zeros(vocabulary), target, 0.1, dtype)
        walk = chunked.ChunkWalk(*inputs, needs_grad=(True, True, True), accuracy=False)
        walk.run()
        gradients.append([grad.double() for grad in walk.grads if grad is not None])
    for rounded, exact in zip(*gradients, strict=True):
        others = slice(8, None) if len(exact) > 4 else slice(None)  # words that are not targets
        error = (rounded[others] - exact[others]).norm() / exact[others].norm()
        assert error < 1e-3
