"""What depth costs: time and memory of building, one training update and decoding, by total layers.

    python benchmarks/depth_cost.py                      # 10, 100 and 1,000 layers at width 64
    python benchmarks/depth_cost.py --layers 10 1000 --width 512 --checkpoint-activations
    python benchmarks/depth_cost.py --rounds 5 --checkpoint-activations-every auto   # real updates

Every depth runs in a process of its own, so that peaks do not mix. Memory is the peak resident set
of that process, Python and torch included. Both should grow linearly with the layers: the last two
columns are what one more layer costs.

With --rounds the updates are those of fairseq's Trainer with our criterion and optimiser, and the
depths take turns, each in a process that is kept alive, the shallow ones with more updates a round;
memory is the peak that a further process adds to what it held before the model was built, with a
malloc that hoards nothing (as benchmarks/peak_memory.py). What a layer costs there is what a depth
costs beyond the shallowest, over the layers beyond it, and the last column of each pair compares
that with the second depth: 1.00 is a cost that grows linearly, and less is cheaper.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

VOCABULARY = 1000


def peak_mib() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(layers: int, width: int, tokens: int, checkpoint: bool) -> dict[str, Any]:
    """Build a DeepNet of `layers` in total, train one update of `tokens` tokens, decode."""
    import torch
    from fairseq.sequence_generator import SequenceGenerator

    import fairseq_deepnet.models  # noqa: F401  (registers the architectures)
    from fairseq_deepnet.tools.standalone import VocabularyTask, build_model

    task = VocabularyTask(VOCABULARY)
    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": layers // 2, f"{side}_embed_dim": width}
        sides |= {
            f"{side}_ffn_embed_dim": 2 * width,
            f"{side}_attention_heads": max(1, width // 32),
        }
    start = time.perf_counter()
    model = build_model(
        "deepnet_transformer",
        task,
        share_all_embeddings=True,
        checkpoint_activations=checkpoint,
        **sides,
    )
    built = time.perf_counter()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(4, VOCABULARY, (2, tokens // 16, 16), generator=generator)
    start_update = time.perf_counter()
    logits, _ = model(words[0], None, words[1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), words[1].flatten())
    loss.backward()
    optimiser.step()
    updated = time.perf_counter()
    finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    trained_peak = peak_mib()
    optimiser.zero_grad()
    model.eval()
    search = SequenceGenerator([model], task.source_dictionary, beam_size=5, max_len_b=20)
    sample = {"net_input": {"src_tokens": words[0][:4], "src_lengths": torch.full((4,), 16)}}
    start_decoding = time.perf_counter()
    hypotheses = search.generate([model], sample)
    return {
        "layers": layers,
        "parameters": sum(p.numel() for p in model.parameters()),
        "finite": finite,
        "sentences": len(hypotheses),
        "build_s": built - start,
        "update_s": updated - start_update,
        "decode_s": time.perf_counter() - start_decoding,
        "train_mib": trained_peak,
        "peak_mib": peak_mib(),
    }


def in_own_process(layers: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(layers)]
    command += ["--width", str(options.width), "--tokens", str(options.tokens)]
    command += ["--checkpoint-activations"] if options.checkpoint_activations else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    return dict(json.loads(done.stdout))


def table(rows: list[dict[str, Any]]) -> str:
    """The measurements as Markdown, each with its growth from the row above, a layer."""
    head = ("layers", "parameters", "build s", "update s", "decode s", "peak MiB")
    head += ("s / layer", "MiB / layer")
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    previous: dict[str, Any] | None = None
    for row in rows:
        growth = "| |"
        if previous is not None:
            more = row["layers"] - previous["layers"]
            seconds = (row["update_s"] - previous["update_s"]) / more
            memory = (row["peak_mib"] - previous["peak_mib"]) / more
            growth = f"| {seconds:.4f} | {memory:.2f} |"
        lines.append(
            f"| {row['layers']:,} | {row['parameters']:,} | {row['build_s']:.2f} |"
            f" {row['update_s']:.2f} | {row['decode_s']:.2f} | {row['peak_mib']:,.0f} {growth}"
        )
        previous = row
    return "\n".join(lines)


def in_turn(depths: list[int], options: argparse.Namespace) -> dict[int, dict[str, list[float]]]:
    """Seconds of updates through fairseq's Trainer, a number a round, and peak bytes, by depth."""
    from plan_accuracy import FIXED_MALLOC
    from side_by_side.race import start
    from side_by_side.systems import Shape, System

    flags = ["--checkpoint-activations"] if options.checkpoint_activations else []
    every = options.checkpoint_activations_every
    flags += [] if every is None else [f"--checkpoint-activations-every={every}"]
    system = System("ours", "ours", tuple(flags))
    shapes = {n: Shape(n // 2, options.width, VOCABULARY, options.tokens) for n in depths}
    found: dict[int, dict[str, list[float]]] = {n: {"seconds": []} for n in depths}
    for layers, shape in shapes.items():
        process = start(system, shape, "cpu", 1, 0, FIXED_MALLOC)
        found[layers]["peak"] = [process.ask("fill", profile=False)["peak"]]
        process.end()
    running = {layers: start(system, shape, "cpu", 1) for layers, shape in shapes.items()}
    try:
        for _ in range(options.rounds):
            for layers, process in running.items():
                repeats = min(10, max(depths) // layers)
                taken = [process.ask("step")["cpu"] for _ in range(repeats)]
                found[layers]["seconds"].append(statistics.fmean(taken))
                found[layers]["parameters"] = [process.ask("step")["parameters"]]
    finally:
        for process in running.values():
            process.end()
    return found


def table_in_turn(found: dict[int, dict[str, list[float]]]) -> str:
    """Seconds and memory of an update, and of a layer of it, as Markdown."""
    shallowest, second, *_ = sorted(found)
    head = ("layers", "parameters", "s / update", "s / layer", "ratio")
    head += ("peak MiB", "MiB / layer", "ratio")
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]

    def a_layer(key: str, layers: int) -> list[float]:
        low, high = found[shallowest][key], found[layers][key]
        return [(b - a) / (layers - shallowest) for a, b in zip(low, high, strict=True)]

    for layers in sorted(found):
        row = found[layers]
        cells = [f"{layers:,}", f"{row['parameters'][0]:,}"]
        for key, unit, digits in (("seconds", 1, 4), ("peak", 2**20, 2)):
            cells.append(f"{statistics.median(row[key]) / unit:,.{digits - 2}f}")
            if layers == shallowest:
                cells += ["", ""]
                continue
            pairs = zip(a_layer(key, layers), a_layer(key, second), strict=True)
            cells.append(f"{statistics.median(a_layer(key, layers)) / unit:.{digits}f}")
            cells.append(f"{statistics.median(one / other for one, other in pairs):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 100, 1000], help="in total")
    parser.add_argument(
        "--width", type=int, default=64, help="channels; feed-forward is twice that"
    )
    parser.add_argument("--tokens", type=int, default=256, help="tokens a side of the update")
    parser.add_argument("--checkpoint-activations", action="store_true")
    parser.add_argument(
        "--checkpoint-activations-every", metavar="LAYERS", help="with --rounds: LAYERS, auto"
    )
    parser.add_argument("--rounds", type=int, default=0, help="of updates in turn (0: see above)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        found = measure(options.one, options.width, options.tokens, options.checkpoint_activations)
        print(json.dumps(found))
        return
    odd = [layers for layers in options.layers if layers < 2 or layers % 2]
    if odd:
        parser.error(f"--layers {odd[0]}: half of them stand on each side; give an even number")
    if options.checkpoint_activations_every and not options.rounds:
        parser.error("--checkpoint-activations-every goes with --rounds")
    if options.rounds:
        if len(options.layers) < 2:
            parser.error("--rounds compares depths: give --layers two at least")
        print(table_in_turn(in_turn(options.layers, options)))
        return
    rows = []
    for layers in options.layers:
        rows.append(in_own_process(layers, options))
        print(f"{layers:,} layers: {rows[-1]}", file=sys.stderr)
        if not rows[-1]["finite"]:
            raise SystemExit(f"{layers:,} layers: a gradient is not finite")
    print(table(rows))


if __name__ == "__main__":
    main()
