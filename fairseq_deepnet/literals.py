"""Safe evaluation of the options that fairseq passes to `eval`.

An option such as "[(512, 3)] * 20" may come from an untrusted checkpoint or config. This module
accepts only constants; lists, tuples, sets and dictionaries of constants; lists joined with + or
repeated with *; and arithmetic on numbers. `compat.py` replaces `eval` in fairseq with `evaluate`.
"""

import ast
import operator
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from .errors import ConfigurationError

MAX_LENGTH: Final = 1_000_000
"""Maximum number of characters; fairseq's models need up to 500, speech manifests about 10,000."""
MAX_ITEMS: Final = 100_000
"""Maximum number of constants and containers in a literal; "[(512, 3)] * 20" has 61."""

EVALUATED: Final = {
    # speech models and convolutional models
    *("encoder_layers", "decoder_layers", "conv_feature_layers", "conv_aggregator_layers"),
    *("character_filters", "feature_encoder_spec", "encoder_attention", "decoder_attention"),
    *("self_attention", "project_input", "gated_attention", "downsample", "pretrained"),
    *("left_pad_source", "left_pad_target", "encoder_glu", "decoder_glu", "weight_softmax"),
    *("encoder_kernel_size_list", "decoder_kernel_size_list", "wer_args"),
    # optimisers, softmaxes, pipelines and tasks
    *("adam_betas", "adamax_betas", "adafactor_eps", "lamb_betas"),
    *("adaptive_input_cutoff", "adaptive_softmax_cutoff", "pipeline_balance", "pipeline_devices"),
    *("pipeline_encoder_balance", "pipeline_encoder_devices"),
    *("pipeline_decoder_balance", "pipeline_decoder_devices"),
    *("extra_data", "extra_lang_pairs", "langtoks", "sampling_weights"),
    *("xformers_att_config", "model_overrides"),
}
"""Options that fairseq passes to `eval`. A test compares this set with fairseq's source."""

RUNS_CODE: Final = ("user-dir", "post-save-script")
"""Options of fairseq-train that name code to run and that no file may set."""

_NAME: Final = re.compile(r"[A-Za-z]\w*(-\w+)*")
_INTERPOLATION: Final = re.compile(r"\$\{(?![\w.]+\})")
"""An interpolation of OmegaConf other than a plain ${option}, at any nesting depth."""
_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(text: str, name: str | None = None) -> Any:
    """Return a literal's value without running code; error messages include `name`.

    Raises:
        ConfigurationError: if the text is not a literal or is too large.
    """
    try:
        if len(text) > MAX_LENGTH:
            raise ValueError("too long")
        tree = ast.parse(text.strip(), mode="eval")
        value = ast.literal_eval(_Calculated().visit(tree))
        if value is not ... and _items(value) <= MAX_ITEMS:
            return value
    except (SyntaxError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError):
        pass  # refused below
    raise ConfigurationError(
        f"{name or 'an option'} is {shortened(text)}; only a number or another literal, such as"
        " [(512, 3)] * 20, is allowed, because fairseq would run other text as Python"
    )


def check_name(name: str, source: str) -> None:
    """Raise ConfigurationError if files must not set this option or if its name is not one word.

    fairseq would split a name such as "user-dir=FOLDER" into an option and its value.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{source}: {shortened(name)}: an option's name is one word")
    if name.replace("_", "-") in RUNS_CODE:
        raise ConfigurationError(f"{source}: {name} names code to run and cannot be set here")


def shortened(text: str, width: int = 60) -> str:
    """Return the text as one short line in quotation marks."""
    return repr(text) if len(text) <= width else repr(text[: width - 3] + "...")


def _items(value: Any) -> int:
    """Count a value and all values that it contains."""
    if isinstance(value, dict):
        return 1 + sum(_items(key) + _items(item) for key, item in value.items())
    return 1 + sum(map(_items, value)) if isinstance(value, list | tuple | set) else 1


class _Calculated(ast.NodeTransformer):
    """Visitor that replaces joined lists, repeated lists and arithmetic with their values."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.Constant:
        a, b = (ast.literal_eval(self.visit(side)) for side in (node.left, node.right))
        operation = type(node.op)
        if operation is ast.Mult and isinstance(b, list | tuple):
            a, b = b, a
        if operation is ast.Mult and isinstance(a, list | tuple) and type(b) is int:
            size = _items(a) * max(b, 0)
        elif operation is ast.Add and isinstance(a, list | tuple) and type(a) is type(b):
            size = _items(a) + _items(b)
        elif operation in _OPERATORS and {type(a), type(b)} <= {int, float}:
            size = 1
        else:
            raise ValueError(operation.__name__)
        if size > MAX_ITEMS:
            raise ValueError("too many items")
        return ast.Constant(_OPERATORS[operation](a, b))


def check_options(options: object, source: str) -> None:
    """Raise ConfigurationError if options would run code or read environment variables.

    Args:
        options: nested mappings and Namespaces, such as a checkpoint's cfg or args.
        source: the file that contains the options, for error messages.
    """
    for name, value in _entries(options):
        try:
            is_evaluated = name.replace("-", "_") in EVALUATED
            if is_evaluated and value and not value.startswith("${"):
                evaluate(value, name)
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {error}") from None
        if _INTERPOLATION.search(value):
            raise ConfigurationError(
                f"{source}: {name} is {shortened(value)}: a file may refer to its own options,"
                " as in ${option}, but not to this machine's environment"
            )


def check_state(state: Mapping[str, Any], path: object) -> None:
    """Check the options stored in the checkpoint at `path`; see `check_options`."""
    for part in ("cfg", "args"):
        check_options(state.get(part), str(path))


def _entries(options: object) -> Iterator[tuple[str, str]]:
    """Yield the name and value of every string in nested options; visit each container once."""
    remaining: list[tuple[str, object]] = [("", options)]
    seen: set[int] = set()
    while remaining:
        name, value = remaining.pop()
        if isinstance(value, str):
            yield name, value
        elif id(value) not in seen:
            seen.add(id(value))
            value = vars(value) if isinstance(value, Namespace) else value
            if isinstance(value, Mapping):
                remaining += [(str(key), inner) for key, inner in value.items()]
            elif isinstance(value, list | tuple):
                remaining += [(name, inner) for inner in value]
