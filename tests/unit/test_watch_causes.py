"""The sentence on the likely cause: from kind, scheme, depth, learning rate, precision."""

import dataclasses

from fairseq_deepnet.divergence.causes import Circumstances, likely_cause
from fairseq_deepnet.divergence.events import Event, Finding, Kind, ended

POST_LN = Circumstances(
    scheme="post-ln",
    depths={"encoder": 18, "decoder": 18},
    lr=1e-3,
    warmup=0,
    precision="fp32",
    clip=0.0,
    adam_eps=1e-8,
    frozen="none",
)
VANISHED = Finding(Kind.VANISHED, 2, "gradients have vanished", {"decoder": (1, 14, 18)})


def cause(finding: Finding = VANISHED, **changes: object) -> str:
    return likely_cause(finding, dataclasses.replace(POST_LN, **changes))  # type: ignore[arg-type]


def test_deep_post_ln_without_warm_up_is_told_as_the_paper_tells_it() -> None:
    text = cause()
    for part in (
        "the model update exploded without warm-up, at a learning rate of 0.001",
        "LayerNorm's inputs grew",
        "about sqrt(d)/|x|, vanishes below decoder layer 15",
        "18-18 layers",
        "lower --lr",
        "--warmup-updates",
        "--residual-scheme deepnorm",
    ):
        assert part in text


def test_the_state_of_the_warm_up_is_told() -> None:
    assert "at update 2 of a warm-up of 4,000" in cause(warmup=4000)
    later = dataclasses.replace(VANISHED, started=5000)
    assert "after a warm-up of 4,000 updates" in cause(later, warmup=4000)


def test_deepnorm_is_not_told_to_use_deepnorm() -> None:
    text = cause(scheme="deepnorm")
    assert "--residual-scheme" not in text
    assert "plain Post-LN" not in text


def test_a_deep_stack_is_told_of_adams_epsilon() -> None:
    assert "or raise --adam-eps to 0.0001." in cause(scheme="deepnorm", adam_eps=1e-8)
    for changes in ({"adam_eps": 1e-4}, {"adam_eps": None}):
        assert "--adam-eps" not in cause(scheme="deepnorm", **{"adam_eps": 1e-8, **changes})
    assert "--adam-eps" not in cause(adam_eps=1e-8)  # plain Post-LN: not tried


def test_frozen_norms_are_proposed_where_they_are_known_to_help() -> None:
    deep = {"encoder": 50, "decoder": 50}
    assert "or start again with --freeze-norms both." in cause(scheme="deepnorm", depths=deep)
    for changes in ({"depths": {"decoder": 18}}, {"frozen": "both"}, {"scheme": "pre-ln"}):
        assert "--freeze-norms" not in cause(**{"scheme": "deepnorm", "depths": deep, **changes})
    assert "--freeze-norms" not in cause(depths=deep)  # plain Post-LN: not tried


def test_every_kind_has_a_cause_that_ends_as_a_sentence() -> None:
    for kind in Kind:
        text = cause(dataclasses.replace(VANISHED, kind=kind))
        assert text.endswith(".")
        assert "--lr" in text


def test_an_event_is_one_record_and_one_readable_line() -> None:
    good = {"update": 1, "loss": 12.65, "nll_loss": 12.6, "gnorm": 4.1, "lr": 1e-3}
    event = Event(VANISHED, 12, cause(), good, "warn", 0)
    record = event.record()
    assert record["update"] == 12
    assert record["layers"] == {"decoder": [1, 14, 18]}
    assert record["last_good"] == good
    assert str(event).startswith(
        "divergence at update 12: gradients have vanished; it began at update 2. Last good, at"
        " update 1: loss 12.7, nll_loss 12.6, gnorm 4.1, lr 0.001. Likely cause: the model update"
    )
    assert "Last good" not in str(dataclasses.replace(event, last_good={}))
    assert ended(VANISHED, 90, 1)["ended"] is True
