"""Run `deepnet check` on DeepNorm in torchscale, the library of the paper's authors.

    python benchmarks/check_torchscale.py                      # 18L-18L, width 512: the report
    python benchmarks/check_torchscale.py --switch override    # switched on by override(args)

The model is torchscale's EncoderDecoder in the shape of the paper's WMT-17 base, with fairseq's
embeddings and positions, as in torchscale's translation example. `--switch` selects one of two ways
to switch DeepNorm on:

    config    EncoderDecoderConfig(deepnorm=True, ...)
    override  EncoderDecoderConfig(...).override(args) with deepnorm=True and subln=False, as in
              torchscale's models for fairseq. The position of LayerNorm keeps its default, Pre-LN;
              the archs of those models set both `normalize_before` options to False.

torchscale is not a dependency of this project. pip installs it into a folder in ~/.cache on first
use. The exit status is that of `deepnet check`: 1 for a model with faults.
"""

import argparse
import subprocess
import sys
import types
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

VERSION = "0.3.0"
FAIRSCALE = "fairscale==0.4.0"  # the version that torchscale 0.3.0 pins
PADDING = 1


def install() -> None:
    """Install torchscale and fairscale, without their dependencies, and make them importable.

    torchscale imports only `drop_path` from timm, which needs a torchvision built for the same
    torch. The rate is 0 here, so a stub replaces it.
    """
    # not in /tmp, where other users could plant code under this name
    folder = Path.home() / ".cache" / f"torchscale-{VERSION}"
    if not (folder / f"torchscale-{VERSION}.dist-info").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        command += ["--target", str(folder), f"torchscale=={VERSION}", FAIRSCALE]
        subprocess.run(command, check=True)
    sys.path.insert(0, str(folder))
    for name in ("timm", "timm.models", "timm.models.layers"):
        sys.modules[name] = types.ModuleType(name)
    vars(sys.modules["timm.models.layers"])["drop_path"] = None
    warnings.simplefilter("ignore")  # fairscale warns about names that torch has moved


def build(vocabulary: int, width: int, switch: str = "config", **settings: Any) -> Any:
    """Build torchscale's encoder-decoder.

    Arguments:
        switch: config or override, as above
        settings: further arguments of EncoderDecoderConfig
    """
    install()
    from fairseq.models.transformer import Embedding
    from fairseq.modules import PositionalEmbedding
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.encoder_decoder import EncoderDecoder

    settings |= {"vocab_size": vocabulary, "no_scale_embedding": False}
    if switch == "config":
        config = EncoderDecoderConfig(deepnorm=True, **settings)
    else:
        config = EncoderDecoderConfig(**settings)
        config.override(Namespace(deepnorm=True, subln=False))
    tables = 1 if settings.get("share_all_embeddings") else 2
    words = [Embedding(vocabulary, width, PADDING) for _ in range(tables)]
    positions = [PositionalEmbedding(1024, width, PADDING) for _ in range(2)]
    return EncoderDecoder(config, words[0], positions[0], words[-1], positions[1])


def main() -> int:
    """Check the model and print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--switch", choices=("config", "override"), default="config")
    parser.add_argument("--layers", type=int, default=18, help="per side (%(default)s)")
    parser.add_argument("--width", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=1000, help="(%(default)s)")
    args = parser.parse_args()

    import torch

    from fairseq_deepnet.anatomy import find_stacks
    from fairseq_deepnet.tools.checking.pipeline import compare, make_claim

    shape = {}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": args.layers, f"{side}_embed_dim": args.width}
        shape |= {f"{side}_ffn_embed_dim": 4 * args.width, f"{side}_attention_heads": 8}
    torch.manual_seed(1)
    model = build(args.vocabulary, args.width, args.switch, **shape)
    subject = f"torchscale {VERSION}, EncoderDecoder with deepnorm=True ({args.switch})"
    stacks = find_stacks(model)
    findings = compare(model, stacks, make_claim(model, None, stacks, "deepnorm"), None, subject)
    print(findings)
    return 0 if findings.is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
