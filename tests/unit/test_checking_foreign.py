"""Models of other houses are measured in the same way: torchscale's names, keywords and tuples."""

from fairseq_deepnet.tools.checking.expected import linear_default_std
from tests.support.checks import examine, kinds, sentences
from tests.support.torchscale_like import EncoderDecoder


def test_layers_with_torchscales_layout_are_found_and_measured() -> None:
    found = examine(EncoderDecoder(6, 4), claim="deepnorm")
    assert found.is_fine, sentences(found)
    assert [len(side.residuals) for side in found.sides] == [2, 3]


def test_their_pre_ln_is_seen_whatever_their_switch_says() -> None:
    model = EncoderDecoder(6, 4, pre=True)
    assert kinds(examine(model, claim="deepnorm")) == {"residual", "norms"}
    model = EncoderDecoder(6, 4)
    for layer in model.decoder.layers:
        layer.normalize_before = True
    found = examine(model, claim="deepnorm")
    assert kinds(found) == {"residual"}
    assert [side.norm for side in found.sides] == ["after the sum", "before the branch"]


def test_their_default_initialisation_and_inverted_constant_are_told_apart() -> None:
    model = EncoderDecoder(6, 4, plain=True)
    for name, parameter in model.encoder.layers.named_parameters():
        if any(word in name for word in ("fc1", "fc2", "out_proj", "v_proj")):
            parameter.data.div_((6**4 * 4) ** (1 / 16) / 1.15)
    found = examine(model, claim="deepnorm")
    assert kinds(found) == {"weights", "biases"}
    text = sentences(found)
    # nn.Linear draws with 0.577 of Xavier's deviation here, times 1.15 (N^4 M)^(-1/16) = 0.67
    assert "encoder self_attn.q_proj, self_attn.k_proj: gain 0.57" in text
    assert "encoder self_attn.v_proj, self_attn.out_proj, fc1, fc2: gain 0.38" in text
    fc1 = model.decoder.layers[0].ffn.fc1
    assert abs(float(fc1.weight.detach().std()) / linear_default_std(fc1) - 1) < 0.05
