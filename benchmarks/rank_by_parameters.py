"""Which parameters of a trained stack bring its tokens onto one line.

    python benchmarks/rank_by_parameters.py RUN/checkpoints/checkpoint_1_400.pt --data DATA

Effective rank of a layer's tokens (`token_rank` of docs/quantities.md), by layer, for the first 32
sentences of the validation set: of the model as trained; of the model as it started, which the
seed gives again; as trained, but one group of parameters as it started; and as it started, but one
group as trained. What brings the rank back in the third part, and takes it away in the last, is
the cause. Groups: gains and biases of LayerNorms, biases and weights of linear maps, embeddings.
"""

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fairseq_deepnet.models  # noqa: F401  (registers the architectures)

# isort: split
import torch
from fairseq import checkpoint_utils, utils
from tabulate import tabulate
from torch import Tensor, nn

from fairseq_deepnet.anatomy import find_stacks
from fairseq_deepnet.models.scheme_options import scheme_in
from fairseq_deepnet.monitoring.probe import RANK, SENTENCES, Probe

PARTS = (0, 0.1, 0.2, 0.4, 0.6, 0.8, 1)  # of a stack, from its first layer to its last
GROUPS = ("LayerNorm gains", "LayerNorm biases", "biases", "weights", "embeddings")


def group_of(model: nn.Module) -> dict[str, str]:
    """Return the group of each parameter by its name; a shared one has that of its first place."""
    found: dict[str, str] = {}
    shared: dict[Tensor, str] = {}
    for path, module in model.named_modules():
        for kind, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.LayerNorm):
                group = GROUPS[0] if kind == "weight" else GROUPS[1]
            elif isinstance(module, nn.Embedding):
                group = "embeddings"
            else:
                group = "biases" if kind == "bias" else "weights"
            found[f"{path}.{kind}"] = shared.setdefault(parameter, group)
    return found


def ranks(model: nn.Module, probe: Probe, weights: dict[str, Tensor]) -> list[float]:
    """Return the ranks of chosen layers with other weights: the encoder's, then the decoder's."""
    model.load_state_dict(weights)
    scheme = scheme_in(model.cfg)
    assert scheme is not None
    values = probe.features_and_layers(model, find_stacks(model), scheme.norm, {RANK})[1][RANK]
    rows = [side["layer"] for side in values.values()]
    return [row[round(part * (len(row) - 1))] for row in rows for part in PARTS]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the folder it was trained on")
    args = parser.parse_args()
    logging.disable(logging.INFO)

    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(args.checkpoint)], arg_overrides={"data": str(args.data)}
    )
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    batch = dataset.collater([dataset[i] for i in range(min(SENTENCES, len(dataset)))])
    probe = Probe(batch["net_input"], task.target_dictionary.pad())
    model = models[0]
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    utils.set_torch_seed(cfg.common.seed)
    start = task.build_model(cfg.model).state_dict()
    groups = group_of(model)

    def mixed(one: dict[str, Tensor], other: dict[str, Tensor], group: str) -> dict[str, Tensor]:
        return {n: (other if groups.get(n) == group else one)[n] for n in one}

    rows = [("as trained", trained), ("as it started", start)]
    rows += [
        (f"as trained, {group} as they started", mixed(trained, start, group)) for group in GROUPS
    ]
    rows += [
        (f"as it started, {group} as trained", mixed(start, trained, group)) for group in GROUPS
    ]
    headings = [
        f"{stack.side.value[:3]} {part:.0%}" for stack in find_stacks(model) for part in PARTS
    ]
    table = [[name, *ranks(model, probe, weights)] for name, weights in rows]
    print(tabulate(table, ["", *headings], floatfmt=".4g", tablefmt="pipe"))
    moved = {
        group: [
            (trained[n] - start[n]).float().square().mean().sqrt()
            for n, g in groups.items()
            if g == group
        ]
        for group in GROUPS
    }
    print("\nmoved, root mean square over a group: ", end="")
    print(", ".join(f"{g} {torch.stack(m).mean():.2g}" for g, m in moved.items() if m))


if __name__ == "__main__":
    with torch.no_grad():
        main()
