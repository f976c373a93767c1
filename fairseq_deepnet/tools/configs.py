"""Training configs: flat YAML of fairseq-train options, each file building on others.

A key is a long option of fairseq-train without its dashes (`max-tokens: 4096`). `defaults: [base]`
reads other files of the same folder first; what is said later wins. null takes an
option back. `recipe:` holds what is the recipe's and no option of fairseq's (data, global batch).

A file may set only what a recipe needs: a config or a sweep may come from a stranger, and with
log-file or tensorboard-logdir fairseq would write text that the file chooses to any place.
Everything else is for the command line.

A `total-num-update` that equals `max-update` follows it where a later file or the command line sets
only `max-update`: a longer training would otherwise end with a learning rate of 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from fairseq_deepnet import literals
from fairseq_deepnet.errors import ConfigurationError, did_you_mean
from fairseq_deepnet.files import RESOURCES
from fairseq_deepnet.tools import fairseq_options

Value = bool | int | float | str | None

CONFIG_FOLDER: Final = RESOURCES / "configs"
RECIPE_KEYS: Final = {
    "data": "the folder that scripts/preprocess*.sh made; relative to the project",
    "global-batch-tokens": "tokens of one update over all devices: 524288 or 128 x 4096",
    "preprocess": "the script that makes the data folder",
    "vocabulary": "entries of the dictionary, to plan with while there is no data folder",
    "reference": "where the hyper-parameters come from",
}

_TRAINING: Final = """
arch task criterion optimizer lr-scheduler seed
residual-scheme scheme-variant init freeze-norms no-decoder-final-norm allow-other-scheme
encoder-layers encoder-embed-dim encoder-ffn-embed-dim encoder-attention-heads encoder-learned-pos
encoder-normalize-before encoder-layerdrop
decoder-layers decoder-embed-dim decoder-ffn-embed-dim decoder-attention-heads decoder-learned-pos
decoder-normalize-before decoder-layerdrop decoder-input-dim decoder-output-dim
share-all-embeddings share-decoder-input-output-embed merge-src-tgt-embed layernorm-embedding
no-scale-embedding no-token-positional-embeddings
dropout attention-dropout activation-dropout relu-dropout activation-fn max-positions
max-source-positions max-target-positions cross-self-attention no-cross-attention
adaptive-input adaptive-input-cutoff adaptive-input-factor adaptive-softmax-cutoff
adaptive-softmax-dropout adaptive-softmax-factor tie-adaptive-proj tie-adaptive-weights
untie-weights-roberta pooler-activation-fn pooler-dropout quant-noise-pq quant-noise-pq-block-size
quant-noise-scalar
checkpoint-activations checkpoint-activations-every offload-activations compile
min-params-to-wrap ddp-backend cpu-offload bucket-cap-mb find-unused-parameters
fp16 bf16 memory-efficient-fp16 memory-efficient-bf16 fp16-adam-stats fp16-no-flatten-grads
fp16-init-scale fp16-scale-window fp16-scale-tolerance min-loss-scale threshold-loss-scale amp
amp-batch-retries amp-init-scale amp-scale-window on-cpu-convert-precision empty-cache-freq
store-ema ema-decay ema-start-update ema-update-freq ema-fp32
monitor monitor-interval on-divergence fallbacks
max-update max-epoch stop-time-hours stop-min-lr update-freq clip-norm sentence-avg
skip-remainder-batch patience label-smoothing report-accuracy ignore-prefix-size
lr min-lr warmup-updates warmup-init-lr warmup-steps hold-steps decay-steps total-num-update
end-learning-rate power phase-ratio init-lr-scale final-lr-scale lr-period-updates lr-shrink
lr-patience lr-threshold t-mult force-anneal
weight-decay adam-betas adam-eps use-old-adam momentum adafactor-eps beta1 clip-threshold decay-rate
relative-step scale-parameter warmup-init
source-lang target-lang lang-pairs langs encoder-langtok decoder-langtok lang-tok-style
sampling-method sampling-temperature virtual-epoch-size virtual-data-size left-pad-source
left-pad-target upsample-primary truncate-source num-batch-buckets
train-subset valid-subset combine-valid-subsets dataset-impl max-tokens batch-size max-tokens-valid
batch-size-valid max-valid-steps required-batch-size-multiple required-seq-len-multiple num-workers
data-buffer-size skip-invalid-size-inputs-valid-test curriculum grouped-shuffling
tokens-per-sample sample-break-mode shorten-method shorten-data-split-list add-bos-token
future-target past-target self-target pad-to-fixed-bsz pad-to-fixed-length mask-prob
leave-unmasked-prob random-token-prob mask-whole-words mask-multiple-length mask-stdev
freq-weighted-replacement
validate-interval validate-interval-updates validate-after-updates fixed-validation-seed
disable-validation best-checkpoint-metric maximize-best-checkpoint-metric eval-bleu eval-bleu-args
eval-bleu-detok eval-bleu-detok-args eval-bleu-print-samples eval-bleu-remove-bpe
eval-tokenized-bleu
save-interval save-interval-updates keep-interval-updates keep-interval-updates-pattern
keep-last-epochs keep-best-checkpoints no-epoch-checkpoints no-last-checkpoints no-save
no-save-optimizer-state restore-file continue-once finetune-from-model reset-dataloader
reset-lr-scheduler reset-meters reset-optimizer
log-interval log-format no-progress-bar
"""
_SCORING: Final = """
beam nbest lenpen unkpen min-len max-len-a max-len-b match-source-len no-repeat-ngram-size
temperature sampling sampling-topk sampling-topp diverse-beam-groups diverse-beam-strength
prefix-size max-tokens batch-size seed
"""

TRAINING: Final = frozenset(_TRAINING.split())
"""Options of fairseq-train, for configs and for the settings of sweeps."""

SCORING: Final = frozenset(_SCORING.split())
"""Options of fairseq-generate, for the scores of sweeps."""


def check_allowed(name: str, source: str, allowed: frozenset[str] = TRAINING) -> None:
    """Refuse an option that a file may not set; `source` names the file."""
    if name not in allowed:
        raise ConfigurationError(
            f"{source}: {name} is no option that a file may set{did_you_mean(name, allowed)};"
            " other options of fairseq are for the command line"
        )


@dataclasses.dataclass
class Config:
    """A config with everything it builds on."""

    name: str
    options: dict[str, Value]
    recipe: dict[str, Value]
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    """Option -> the file (or command line) that set it, for error messages."""

    def choosing(self) -> list[str]:
        """Return the options that decide which others there are, as fairseq-train takes them."""
        names = (name for name in fairseq_options.CHOOSING if name in self.options)
        return to_arguments({name: self.options[name] for name in names})

    def to_yaml(self) -> str:
        """Return one flat config file that stands for all of them."""
        content = {**self.options, **({"recipe": self.recipe} if self.recipe else {})}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


# libyaml's where it is there: a sweep of 120 cells reads a thousand files
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """YAML in which saying the same key twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag.endswith(":merge"):  # <<, whose keys may be set again
                continue
            key = self.construct_object(key_node, deep=deep)
            if not isinstance(key, Hashable):
                raise ValueError(f"line {key_node.start_mark.line + 1}: a key is a word, no list")
            if key in seen:
                raise ValueError(f"line {key_node.start_mark.line + 1}: {key!r} is set twice")
            seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))


def find_config(name: str, folder: Path = CONFIG_FOLDER) -> Path:
    """Return the file of a config given as a path or as a name in configs/."""
    for candidate in (Path(name), folder / name, folder / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    there = ", ".join(sorted(path.stem for path in folder.glob("*.yaml"))) or "none"
    raise FileNotFoundError(f"no config {name!r}: not a file, and configs/ holds {there}")


def read_yaml(path: Path, what: str = "config", of: str = "option: value") -> dict[str, Any]:
    """Return a file's mapping, `of` keys and values; ValueError for one that is no such `what`."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())
        raise ValueError(f"{path}: not a valid {what}: {detail}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a {what} is a mapping `{of}`, not {type(content).__name__}")
    return content


def _plain(key: object, value: object, source: str) -> Value:
    """Return a value as argparse can take it: a list with commas, as fairseq reads them."""
    if isinstance(value, list) and all(isinstance(item, int | float | str) for item in value):
        return ",".join(map(str, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{source}: {key}: a value is one scalar or a list of scalars, not {type(value).__name__}"
    )


def override(config: Config, content: Mapping[str, Any], source: str) -> None:
    """Let options and `recipe` of `content` win over a config's; null takes an option back.

    `source` is the file (or command line) that it is from; its `defaults` are left out.
    """
    content = _with_what_follows(config, content)
    for key, value in content.items():
        if key == "defaults":
            continue
        if key == "recipe":
            _merge_recipe(config, value, source)
        elif not isinstance(key, str):
            raise ValueError(f"{source}: {key!r}: an option's name is a word")
        else:
            literals.check_name(key, source)
            if value is None:
                config.options.pop(key, None)
            else:
                config.options[key] = _plain(key, value, source)
                literals.check_options({key: config.options[key]}, source)
                config.sources[key] = source


def _with_what_follows(config: Config, content: Mapping[str, Any]) -> Mapping[str, Any]:
    length = content.get("max-update")
    before = config.options.get("max-update")
    tied = before is not None and config.options.get("total-num-update") == before
    if not tied or length is None or "total-num-update" in content:
        return content
    return {**content, "total-num-update": length}


def _merge_recipe(config: Config, content: object, source: str) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{source}: recipe: a mapping `key: value` is expected")
    for key, value in content.items():
        if key not in RECIPE_KEYS:
            known = ", ".join(RECIPE_KEYS)
            raise ValueError(f"{source}: recipe: unknown key {key!r}; known are {known}")
        config.recipe[key] = _plain(f"recipe.{key}", value, source)


def _load_into(config: Config, path: Path, above: tuple[Path, ...], recorded: bool = False) -> None:
    resolved = path.resolve()
    if resolved in above:
        chain = " -> ".join(item.name for item in (*above, resolved))
        raise ValueError(f"{path}: defaults: the files build on one another in a circle: {chain}")
    content = read_yaml(path)
    defaults = content.get("defaults") or []
    if not isinstance(defaults, list) or not all(isinstance(item, str) for item in defaults):
        raise ValueError(f"{path}: defaults: a list of names is expected, such as [base]")
    for name in defaults:
        below = path.parent / (name if name.endswith(".yaml") else f"{name}.yaml")
        if not below.is_file():
            raise FileNotFoundError(f"{path}: defaults: {name!r}: there is no file {below}")
        _load_into(config, below, (*above, resolved))
    if not recorded:
        for name in content.keys() - {"defaults", "recipe"}:
            check_allowed(str(name), str(path))
    override(config, content, str(path))


def parse_override(text: str) -> tuple[str, Any]:
    """Return key and value of `key=value`, the value as YAML reads it."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not of the form key=value")
    return key.removeprefix("--"), parse_value(value)


def parse_value(text: str) -> Any:
    """Return a value as YAML reads it; ValueError for what is none."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{text!r}: {' '.join(str(error).split())}") from error


def load_config(name: str, overrides: Sequence[str] = (), folder: Path = CONFIG_FOLDER) -> Config:
    """Read a config with everything that it builds on, then apply `key=value` overrides.

    Raises FileNotFoundError for a config or a default that is not there, ValueError (with file and
    key) for what is malformed. Whether fairseq knows the options is `check_options`'s business.
    """
    path = find_config(name, folder)
    config = Config(path.stem, {}, {})
    _load_into(config, path, ())
    said = dict(map(parse_override, overrides))
    recipes = [key for key in said if key.startswith("recipe.")]
    recipe = {key.removeprefix("recipe."): said.pop(key) for key in recipes}
    override(config, {**said, "recipe": recipe}, "command line")
    return config


def recorded_config(run: Path) -> Config:
    """Return the config that a run folder recorded, with the options of its command line."""
    config = Config("config", {}, {})
    _load_into(config, run / "config.yaml" if run.is_dir() else run, (), recorded=True)
    return config


def to_arguments(options: dict[str, Value]) -> list[str]:
    """Return fairseq-train's argument list: true is a bare flag, false and null are left out."""
    arguments = []
    for key, value in options.items():
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(f"--{key}")
        elif str(value).startswith("-"):
            arguments.append(f"--{key}={value}")
        else:
            arguments += [f"--{key}", str(value)]
    return arguments


def check_options(config: Config) -> None:
    """Let fairseq's real parser look at every option and value.

    Raises ValueError that names file and option, and of an unknown name the nearest known.
    """
    with _naming_the_file(config):
        parser = fairseq_options.training_parser(["DATA", *config.choosing()])
    known = fairseq_options.option_actions(parser)
    for key, value in config.options.items():
        source = config.sources.get(key, config.name)
        if key not in known:
            hint = fairseq_options.nearest(key, list(known))
            raise ValueError(f"{source}: {key}: fairseq-train has no such option{hint}")
        if isinstance(value, bool) and known[key].nargs != 0:
            raise ValueError(f"{source}: {key}: takes a value, not {str(value).lower()}")
        if value is not None and not isinstance(value, bool) and known[key].nargs == 0:
            raise ValueError(f"{source}: {key}: is a switch (true or false), not {value!r}")
    with _naming_the_file(config):
        fairseq_options.parse_training(["DATA", *to_arguments(config.options)])


@contextmanager
def _naming_the_file(config: Config) -> Iterator[None]:
    """Put before an error the file that set the option which it is about ("argument --lr: ...")."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        named = (f for key, f in config.sources.items() if re.search(rf"--{key}(?![\w-])", text))
        raise ValueError(f"{next(named, config.name)}: {text}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet args`."""
    parser.add_argument("config", help="a YAML file, or a name in configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options that win")
    parser.add_argument(
        "--print", action="store_true", dest="as_yaml", help="print one flat YAML file instead"
    )


def run(args: argparse.Namespace) -> int:
    """Print the arguments, each ended by NUL, so that a shell need not parse YAML."""
    config = load_config(args.config, args.overrides)
    check_options(config)
    if args.as_yaml:
        print(config.to_yaml(), end="")
    else:
        sys.stdout.write("".join(f"{argument}\0" for argument in to_arguments(config.options)))
    return 0
