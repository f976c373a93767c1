"""Safe reading of options that fairseq evaluates as Python, so that a file cannot run code.

fairseq passes some options, strings such as "[(512, 3)] * 20", to `eval`. Such an option may come
from a stranger's checkpoint or config. Here these strings may consist of constants in lists,
tuples, sets and dictionaries, lists joined with + or repeated with *, and arithmetic on numbers.
`compat.py` replaces `eval` in fairseq with this.
"""

from __future__ import annotations

import ast
import operator
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from .errors import ConfigurationError

MAX_OPTION: Final = 10_000
"""Maximum number of characters in an option; fairseq's own archs use up to 500."""
MAX_LINE: Final = 1_000_000
"""Maximum number of characters in another literal; manifests of speech units have lines of about
10,000.
"""
MAX_ITEMS: Final = 100_000
"""Maximum number of items in all lists of a literal; "[(512, 3)] * 20" has 60."""


EVALUATED: Final = {
    # of models of speech and of convolutions
    *("encoder_layers", "decoder_layers", "conv_feature_layers", "conv_aggregator_layers"),
    *("character_filters", "feature_encoder_spec", "encoder_attention", "decoder_attention"),
    *("self_attention", "project_input", "gated_attention", "downsample", "pretrained"),
    *("left_pad_source", "left_pad_target", "encoder_glu", "decoder_glu", "weight_softmax"),
    *("encoder_kernel_size_list", "decoder_kernel_size_list", "wer_args"),
    # of optimisers, softmaxes, pipelines and tasks
    *("adam_betas", "adamax_betas", "adafactor_eps", "lamb_betas"),
    *("adaptive_input_cutoff", "adaptive_softmax_cutoff", "pipeline_balance", "pipeline_devices"),
    *("pipeline_encoder_balance", "pipeline_encoder_devices"),
    *("pipeline_decoder_balance", "pipeline_decoder_devices"),
    *("extra_data", "extra_lang_pairs", "langtoks", "sampling_weights"),
    *("xformers_att_config", "model_overrides"),
}
"""Options that fairseq evaluates. A test compares them with fairseq's source."""

RUNS_CODE: Final = {
    "user-dir": "it is a folder of code, and always this plugin",
    "post-save-script": "it is a command to run",
}
"""Options of fairseq-train that a file may not set."""

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
    """Return the value of a literal without running code; `name` is the option's name.

    Raises ConfigurationError, naming both, if the text is not a literal or is too large.
    """
    try:
        if len(text) > (MAX_OPTION if name else MAX_LINE):
            raise ValueError("too long")
        tree = ast.parse(text.strip(), mode="eval")
        value = ast.literal_eval(_Calculated().visit(tree))
        if value is not ... and _items(value) <= MAX_ITEMS:
            return value
    except (SyntaxError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError):
        pass  # refused below, whatever is wrong with it
    raise ConfigurationError(
        f"{name or 'an option'} is {shortened(text)}; fairseq would run it as Python, so that only"
        " a literal is taken, such as [(512, 3)] * 20"
    )


def check_name(name: str, source: str) -> None:
    """Refuse the name of an option that a file may not set, or that is not a plain name.

    fairseq would split "user-dir=FOLDER: true" into an option and its value.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{source}: {shortened(name)}: an option's name is a word")
    if (reason := RUNS_CODE.get(name.replace("_", "-"))) is not None:
        raise ConfigurationError(f"{source}: {name}: a file does not set this option; {reason}")


def shortened(text: str, width: int = 60) -> str:
    """Return the text as one short line in quotation marks."""
    return repr(text) if len(text) <= width else repr(text[: width - 3] + "...")


def _items(value: Any) -> int:
    """Count a value and all values that it contains."""
    if isinstance(value, dict):
        return 1 + sum(_items(key) + _items(item) for key, item in value.items())
    return 1 + sum(map(_items, value)) if isinstance(value, list | tuple | set) else 1


class _Calculated(ast.NodeTransformer):
    """Replaces joined and repeated lists and arithmetic expressions with their values."""

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
    """Refuse options that would run code or read the environment when fairseq builds from them.

    They are nested mappings and Namespaces, such as the cfg or args of a checkpoint. Raises
    ConfigurationError with the source, the option and its value.
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
                f"{source}: {name} is {shortened(value)}: a file may not ask for what is not in"
                " it, such as this machine's environment; only ${option} is taken"
            )


def check_state(state: Mapping[str, Any], path: object) -> None:
    """Check the options of a checkpoint that was read from `path`, likewise."""
    for part in ("cfg", "args"):
        check_options(state.get(part), str(path))


def _entries(options: object) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for all strings in nested options; visit recursive values once."""
    left: list[tuple[str, object]] = [("", options)]
    seen: set[int] = set()
    while left:
        name, value = left.pop()
        if isinstance(value, str):
            yield name, value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Namespace):
            value = vars(value)
        if isinstance(value, Mapping):
            left += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            left += [(name, inner) for inner in value]
