"""How sublayers join the stream, and what follows a stack: what is measured against what is due."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from fairseq_deepnet.anatomy import Stack
from fairseq_deepnet.schemes import NormPlacement, Place, ResidualScheme, Role, Side, Sublayer
from fairseq_deepnet.tools.checking.behaviour import Join, expected_join, factor, formula, same
from fairseq_deepnet.tools.checking.causes import explain_join, mistakes_of
from fairseq_deepnet.tools.checking.claim import Claim
from fairseq_deepnet.tools.checking.findings import Fault, Findings, JoinRow, SideFindings
from fairseq_deepnet.tools.checking.words import plural

LEARNED: Final = "learned"

NORM_TEXTS: Final = {
    NormPlacement.POST: "after the sum",
    NormPlacement.PRE: "before the branch",
    NormPlacement.NONE: "none",
    None: "in no known place",
}


def compare_joins(
    stack: Stack,
    side: SideFindings,
    layers: Sequence[Sequence[Join]],
    claim: Claim,
    found: Findings,
) -> None:
    """Rows and faults of one side's sublayers, of which `layers` are the measured joins."""
    scheme = claim.schemes[stack.side]
    due, learns = joins_due(stack, layers, scheme)
    judged = found.judged or not learns
    wrong: dict[Sublayer, list[int]] = {}
    for position, branch in enumerate(stack.layers[0].branches):
        have, want = ([layer[position] for layer in joins] for joins in (layers, due))
        off = [i for i, (a, b) in enumerate(zip(have, want, strict=True)) if _differs(a, b, judged)]
        expected = formula(want) if judged else LEARNED
        side.joins.append(JoinRow(branch.sublayer.value, formula(have), expected, not off))
        if off:
            wrong[branch.sublayer] = off
    found.faults += _faults(stack, layers, due, wrong, scheme)
    side.alpha = _alpha(layers)
    side.expected_alpha = _alpha(due) if judged else LEARNED
    norms = dict.fromkeys(NORM_TEXTS[join.norm] for layer in layers for join in layer)
    side.norm, side.expected_norm = ", ".join(norms), NORM_TEXTS[scheme.norm]


def joins_due(
    stack: Stack, layers: Sequence[Sequence[Join]], scheme: ResidualScheme
) -> tuple[list[list[Join]], bool]:
    """What the scheme makes of each measured sublayer's stream, and whether it learns a part."""
    sublayers = tuple(branch.sublayer for branch in stack.layers[0].branches)
    width = stack.layers[0].branches[-1].linears[Role.FC2].out_features
    due: list[list[Join]] = []
    learns = False
    for index, layer in enumerate(layers):
        residuals = scheme.build_residuals(Place(stack.side, index), sublayers, width)
        due.append(
            [
                expected_join(residuals[sublayer], scheme.norm, join)
                for sublayer, join in zip(sublayers, layer, strict=True)
            ]
        )
        learns |= any(True for residual in residuals.values() for _ in residual.parameters())
    return due, learns


def _differs(have: Join, want: Join, judged: bool) -> bool:
    """Whether a sublayer does not what its scheme says, for the same stream and branch."""
    return have.norm is not want.norm or (judged and not same(have.z, want.z))


def _faults(
    stack: Stack,
    layers: Sequence[Sequence[Join]],
    due: Sequence[Sequence[Join]],
    wrong: dict[Sublayer, list[int]],
    scheme: ResidualScheme,
) -> list[Fault]:
    """One fault for all sublayers that are off in the same way; `wrong` says in which layers."""
    groups: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for position, branch in enumerate(stack.layers[0].branches):
        off = wrong.get(branch.sublayer)
        if not off:
            continue
        have, want = ([joins[i][position] for i in off] for joins in (layers, due))
        inside = f" in {plural('layer', off)}" if len(off) < len(layers) else ""
        cause = explain_join(have[0], want[0], scheme, stack.side)
        groups[inside, formula(have), formula(want), cause].append(branch.sublayer.value)
    source = mistakes_of(scheme).depth_source
    return [
        Fault(
            "residual",
            f"{stack.side.value} {', '.join(names)}{inside}",
            *(found, expected, cause, source),
        )
        for (inside, found, expected, cause), names in groups.items()
    ]


def _alpha(layers: Sequence[Sequence[Join]]) -> str:
    return factor([join.residual for layer in layers for join in layer]).strip() or "1"


def check_final_norm(
    stack: Stack,
    side: SideFindings,
    normed: bool,
    claim: Claim,
    args: Namespace | None,
    found: Findings,
) -> None:
    """A LayerNorm after the stack: Pre-LN needs one, the others have none."""
    scheme = claim.schemes[stack.side]
    left_out = stack.side is Side.DECODER and getattr(args, "no_decoder_final_norm", False)
    due = scheme.norm is NormPlacement.PRE and not left_out
    side.norm += ", and after the stack" if normed else ""
    side.expected_norm += ", and after the stack" if due else ""
    if normed is not due:
        texts = {True: "a LayerNorm after the stack", False: "no LayerNorm after the stack"}
        where, says = f"{stack.side.value} output", mistakes_of(scheme).layer_source
        found.faults.append(Fault("norms", where, texts[normed], texts[due], "", says))
