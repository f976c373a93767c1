"""Training configs: flat YAML files of fairseq-train options that build on one another.

A key is a long option of fairseq-train without leading dashes (`max-tokens: 4096`). The files in
`defaults: [base]`, in the same folder, are read first and then overridden. A null value removes an
option. `recipe:` contains entries that are not options of fairseq (data folder, global batch).

A config or sweep may come from an untrusted source. It therefore cannot set options that name code,
a network address, or an output file or folder; these can only be set on the command line.

If `total-num-update` equals `max-update`, both change when a later file or the command line changes
`max-update`. Otherwise the learning rate of a longer run would reach 0 before the run's end.
"""

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from fairseq_deepnet import literals
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.files import RESOURCES, ROOT, shown
from fairseq_deepnet.tools import fairseq_options

Value = bool | int | float | str | None

CONFIG_FOLDER: Final = RESOURCES / "configs"
RECIPE_KEYS: Final = ("data", "global-batch-tokens", "preprocess", "vocabulary", "reference")
"""Data folder, tokens per update over all devices (such as 524288 or 128 x 4096), script that
builds the folder, dictionary size (to plan without data), and source of the hyper-parameters."""
_NOT_IN_FILES: Final = re.compile(
    r"(?!restore-file$).*(dir|file|path|repo|script|suffix)"
    r"|(aim|azureml|distributed|gpt2|wandb)-.*|.*plasma.*|bpe|profile|tokenizer"
)


def check_allowed(name: str, source: str) -> None:
    """Raise ConfigurationError for an option that no file may set; `source` names the file."""
    if _NOT_IN_FILES.fullmatch(name.lstrip("-").replace("_", "-")):
        raise ConfigurationError(f"{source}: no file may set {name}; give it on the command line")


@dataclasses.dataclass
class Config:
    """A config, combined with the configs that it builds on."""

    name: str  # stem of the file
    options: dict[str, Value]  # fairseq-train's options, without dashes
    recipe: dict[str, Value]  # entries of RECIPE_KEYS

    @property
    def data(self) -> Path | None:
        """The recipe's data folder, or None; a relative path in a recipe is relative to ROOT."""
        return ROOT / str(self.recipe["data"]) if "data" in self.recipe else None

    def to_yaml(self) -> str:
        """Return the config as one flat YAML file."""
        content = {**self.options, **({"recipe": self.recipe} if self.recipe else {})}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


# libyaml's faster loader, if available, as a sweep of 120 cells reads a thousand files
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def find_config(name: str, folder: Path) -> Path:
    """Return the path of a config file, given its path or its name in `folder`."""
    for candidate in (Path(name), folder / name, folder / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml"))) or "none"
    raise FileNotFoundError(f"{name!r} is neither a file nor a name in {shown(folder)}/: {names}")


def read_yaml(path: Path, what: str = "config", of: str = "option: value") -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        ValueError: if the file is invalid; the message states its kind (`what`) and form (`of`).
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        detail = " ".join(str(error).split())
        raise ValueError(f"{path}: not a valid {what}: {detail}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a {what} is a mapping `{of}`, not {type(content).__name__}")
    return content


def _plain(key: object, value: object, source: str) -> Value:
    """Return a scalar unchanged, and a list as a comma-separated string, as fairseq expects."""
    if isinstance(value, bool) and str(key).endswith("-lang"):
        raise ValueError(f'{source}: {key}: YAML reads the language no as false; write "no"')
    if isinstance(value, list) and all(isinstance(item, int | float | str) for item in value):
        return ",".join(map(str, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{source}: {key}: a value is one scalar or a list of scalars, not {type(value).__name__}"
    )


def tied(options: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return changes of options, with total-num-update if it equals a max-update that changes."""
    length, before = changes.get("max-update"), options.get("max-update")
    follows = before is not None and options.get("total-num-update") == before
    return {"total-num-update": length, **changes} if follows and length is not None else changes


def override(config: Config, content: Mapping[str, Any], source: str) -> None:
    """Override a config's options and recipe with `content`, in which null removes an option.

    The key `recipe.KEY` sets one entry of the recipe, and `defaults` is ignored. `source` names the
    file or command line in error messages.
    """
    for key, value in tied(config.options, content).items():
        if key == "defaults":
            continue
        if str(key).startswith("recipe."):
            key, value = "recipe", {key.removeprefix("recipe."): value}
        if key == "recipe":
            entries = value if isinstance(value, dict) else {str(value): None}
            for unknown in entries.keys() - set(RECIPE_KEYS):
                keys = ", ".join(RECIPE_KEYS)
                raise ValueError(f"{source}: recipe: unknown key {unknown!r}; choose from {keys}")
            recipe = config.recipe | {name: _plain(name, v, source) for name, v in value.items()}
            config.recipe = {name: entry for name, entry in recipe.items() if entry is not None}
            continue
        literals.check_name(str(key), source)
        if value is None:
            config.options.pop(key, None)
        else:
            config.options[key] = _plain(key, value, source)
            literals.check_options({key: config.options[key]}, source)


def _load_into(config: Config, path: Path, recorded: bool = False) -> None:
    content = read_yaml(path)
    defaults = content.get("defaults") or []
    if not isinstance(defaults, list):
        raise ValueError(f"{path}: defaults: expected a list of names, such as [base]")
    for name in map(str, defaults):
        below = path.parent / (name if name.endswith(".yaml") else f"{name}.yaml")
        if not below.is_file():
            raise FileNotFoundError(f"{path}: defaults: {name!r}: there is no file {below}")
        _load_into(config, below)
    if not recorded:
        for name in content.keys() - {"defaults", "recipe"}:
            check_allowed(str(name), str(path))
    override(config, content, str(path))


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, with the value parsed as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not of the form key=value")
    return key.removeprefix("--"), parse_value(value)


def parse_value(text: str) -> Any:
    """Parse a value as YAML; raise ValueError if it is not valid YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not valid YAML") from error


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config and the configs that it builds on, and apply `key=value` overrides.

    Whether fairseq accepts the options is checked by `check_options`, not here.

    Raises:
        FileNotFoundError: if the config or one of its `defaults` is missing.
        ValueError: if a config is malformed; the message names the file and the key.
    """
    path = find_config(name, CONFIG_FOLDER)
    config = Config(path.stem, {}, {})
    _load_into(config, path)
    override(config, dict(map(parse_override, overrides)), "command line")
    return config


def recorded_config(run: Path) -> Config:
    """Return the config recorded in a run folder, including options from the run's command line."""
    config = Config("config", {}, {})
    _load_into(config, run / "config.yaml" if run.is_dir() else run, recorded=True)
    return config


def to_arguments(options: Mapping[str, Value]) -> list[str]:
    """Return fairseq-train arguments; a true option becomes a flag; false and null are omitted."""
    # with an equals sign, fairseq's message about a value names the option
    return [
        f"--{key}" if value is True else f"--{key}={value}"
        for key, value in options.items()
        if value is not None and value is not False
    ]


def check_data(data: Path, config: Config) -> None:
    """Raise FileNotFoundError, naming the script to run, if a folder contains no training data."""
    script = config.recipe.get("preprocess") or "scripts/preprocess.sh"
    # a recipe's languages; without them, the folder would contain other text than its name says
    names = ("SRC", "TGT", "LANGS", "VARIANT") if "DEEPNET_COMMAND" in os.environ else ()
    chosen = {name: os.environ[name] for name in names if os.environ.get(name)}
    settings = "".join(f"{name}={shlex.quote(value)} " for name, value in chosen.items())
    if not any(data.glob("dict*.txt")) or not any(data.glob("train*.idx")):
        raise FileNotFoundError(
            f"no training data in {shown(data)}: correct DATA (--data) or run"
            f" `{settings}bash {script}`"
        )


def check_options(config: Config) -> None:
    """Raise ValueError with the option's name if fairseq's parser rejects an option of a config."""
    try:
        fairseq_options.parse_training(["DATA", *to_arguments(config.options)])
    except ValueError as error:
        raise ValueError(f"{config.name}: {error}") from error
