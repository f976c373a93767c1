"""Run `deepnet check` on DeepNorm in torchscale, the library of the paper's authors.

    python benchmarks/check_torchscale.py                      # 18L-18L, width 512: the report
    python benchmarks/check_torchscale.py --switch override    # switched on by override(args)
    python benchmarks/check_torchscale.py --layers 6 --json report.json

torchscale is not a dependency of this project. It is installed from the package index into
--folder, without its dependencies except fairscale, and uses the installed torch. It imports only
`drop_path` from timm, which needs a torchvision built for the same torch; as the rate is 0 here, a
stub replaces it.

The model is torchscale's EncoderDecoder in the shape of the paper's WMT-17 base, with fairseq's
embeddings and positions, as in torchscale's translation example. `--switch` selects one of two ways
to switch DeepNorm on:

    config    EncoderDecoderConfig(deepnorm=True, ...)
    override  EncoderDecoderConfig(...).override(args), where args set deepnorm=True, subln=False
              and not the position of LayerNorm, which stays at the default, Pre-LN.
              torchscale's models for fairseq use `override`; their archs happen to set both
              `normalize_before` options to False.

The exit status is that of `deepnet check`: 1 for a model with faults.
"""

import argparse
import subprocess
import sys
import tempfile
import types
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FAIRSCALE = "fairscale==0.4.0"  # what torchscale 0.3.0 pins
PADDING = 1


def install(version: str, folder: Path) -> None:
    """Install torchscale and fairscale into `folder`, unless this version is there."""
    if (folder / f"torchscale-{version}.dist-info").is_dir():
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    command += ["--target", str(folder), f"torchscale=={version}", FAIRSCALE]
    print(f"installing torchscale {version} into {folder}", file=sys.stderr)
    subprocess.run(command, check=True)


def stand_in_for_timm() -> None:
    """Return a stub module with the one function that torchscale imports from timm."""

    def drop_path(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the drop path rate is 0 here")

    for name in ("timm", "timm.models", "timm.models.layers"):
        sys.modules[name] = types.ModuleType(name)
    vars(sys.modules["timm.models.layers"])["drop_path"] = drop_path


def build(args: argparse.Namespace) -> Any:
    """Build torchscale's encoder-decoder."""
    stand_in_for_timm()
    warnings.simplefilter("ignore")  # fairscale's, about names that torch has moved
    import torch
    from fairseq.models.transformer import Embedding
    from fairseq.modules import PositionalEmbedding
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.encoder_decoder import EncoderDecoder

    shape: dict[str, Any] = {"vocab_size": args.vocabulary, "no_scale_embedding": False}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": args.layers, f"{side}_embed_dim": args.width}
        shape |= {f"{side}_ffn_embed_dim": 4 * args.width, f"{side}_attention_heads": 8}
    if args.switch == "config":
        config = EncoderDecoderConfig(deepnorm=True, **shape)
    else:
        config = EncoderDecoderConfig(**shape)
        config.override(Namespace(deepnorm=True, subln=False))
    torch.manual_seed(args.seed)
    tables = [Embedding(args.vocabulary, args.width, PADDING) for _ in range(2)]
    positions = [PositionalEmbedding(1024, args.width, PADDING) for _ in range(2)]
    return EncoderDecoder(config, tables[0], positions[0], tables[1], positions[1])


def main() -> int:
    """Install torchscale, check the model and print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", default="0.3.0", help="of torchscale (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where it is installed (a temporary folder)")
    parser.add_argument("--switch", choices=("config", "override"), default="config")
    parser.add_argument("--layers", type=int, default=18, help="a side (%(default)s)")
    parser.add_argument("--width", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.folder is None:
        args.folder = Path(tempfile.gettempdir()) / f"torchscale-{args.version}"
    install(args.version, args.folder.resolve())
    sys.path.insert(0, str(args.folder.resolve()))

    from fairseq_deepnet.anatomy import find_stacks
    from fairseq_deepnet.files import write_json
    from fairseq_deepnet.tools.checking.expected import make_claim
    from fairseq_deepnet.tools.checking.pipeline import compare

    subject = f"torchscale {args.version}, EncoderDecoder with deepnorm=True ({args.switch})"
    model = build(args)
    stacks = find_stacks(model)
    findings = compare(model, stacks, make_claim(model, None, stacks, "deepnorm"), None, subject)
    if args.json is not None:
        write_json(args.json, findings.as_json())
    print(findings)
    return 0 if findings.is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
