"""Options that fairseq evaluates as Python, read as literals instead: a file cannot run code.

fairseq hands some options, strings such as "[(512, 3)] * 20", to `eval`. Such an option may come
out of a checkpoint or a config that a stranger made. Here is what such a string may be: constants
in lists, tuples, sets and dictionaries, lists joined with + or repeated with *, and arithmetic of
numbers. `compat/literals.py` puts it in the place of `eval` in fairseq.
"""

from __future__ import annotations

import ast
import operator
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fairseq_deepnet.errors import ConfigurationError

MAX_OPTION: Final = 10_000
"""Characters of an option; those of fairseq's own archs have up to 500."""
MAX_LINE: Final = 1_000_000
"""Characters of another literal; a line of a manifest of speech units has some ten thousand."""
MAX_ITEMS: Final = 100_000
"""Items of all lists in a literal: "[(512, 3)] * 20" has 60, and nothing that trains comes near."""


class Form(NamedTuple):
    """What an option's literal may be: in words, an example, and the test of a value."""

    words: str
    example: str
    fits: Callable[[Any], bool]


def _is_sequence(value: Any, fits: Callable[[Any], bool], least: int = 0, most: int = 0) -> bool:
    """True for a list or tuple of items that fit; of `least` to `most` where these are given."""
    if not isinstance(value, list | tuple) or (most and not least <= len(value) <= most):
        return False
    return all(map(fits, value))


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or (_is_whole(value) and value in (0, 1))


def _is_layer(value: Any) -> bool:
    return _is_sequence(value, _is_whole, 2, 4)


def _one_or_more(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: fits(value) or _is_sequence(value, fits)


LAYERS: Final = Form(
    "a list of tuples of 2 to 4 whole numbers",
    "[(512, 3)] * 20",
    lambda value: _is_sequence(value, _is_layer),
)
SWITCH: Final = Form("True or False", "True", _is_switch)
SWITCHES: Final = Form("True, False, or a list of these", "[True, False]", _one_or_more(_is_switch))
PAIR: Final = Form(
    "two numbers", "(0.9, 0.98)", lambda value: _is_sequence(value, _is_number, 2, 2)
)
NUMBERS: Final = Form("numbers", "10000,20000", _one_or_more(_is_number))
MAPPING: Final = Form("a dictionary", "{'name': 1}", lambda value: isinstance(value, dict))
ANY: Final = Form("a Python literal", "[(512, 3)] * 20", lambda value: True)

_OPTIONS: Final = {
    LAYERS: "encoder_layers decoder_layers conv_feature_layers conv_aggregator_layers"
    " character_filters feature_encoder_spec",
    SWITCHES: "encoder_attention decoder_attention self_attention project_input gated_attention"
    " downsample pretrained",
    SWITCH: "left_pad_source left_pad_target encoder_glu decoder_glu weight_softmax",
    PAIR: "adam_betas adamax_betas adafactor_eps lamb_betas",
    NUMBERS: "adaptive_input_cutoff adaptive_softmax_cutoff encoder_kernel_size_list"
    " decoder_kernel_size_list pipeline_balance pipeline_devices pipeline_encoder_balance"
    " pipeline_encoder_devices pipeline_decoder_balance pipeline_decoder_devices",
    MAPPING: "extra_data extra_lang_pairs langtoks sampling_weights xformers_att_config"
    " model_overrides",
    ANY: "wer_args",
}
FORMS: Final = {name: form for form, names in _OPTIONS.items() for name in names.split()}
"""Options that fairseq evaluates -> what they may be. A test compares it with fairseq's source."""

RUNS_CODE: Final = {
    "user-dir": "it is a folder of code, and always this plugin",
    "post-save-script": "it is a command to run",
}
"""Options of fairseq-train that a file may not set."""

_NAME: Final = re.compile(r"[A-Za-z]\w*(-\w+)*")
_RESOLVER: Final = re.compile(r"\$\{\s*[\w.]+\s*:")
_COLLECTIONS: Final[dict[type[ast.expr], Callable[[list[Any]], Any]]] = {
    ast.List: list,
    ast.Tuple: tuple,
    ast.Set: set,
}
_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(text: str, name: str | None = None) -> Any:
    """Return the value of a literal, without running anything.

    Args:
        text: the literal
        name: the option that it is the value of, which decides its form; None if it is none

    Raises ConfigurationError, naming both, for what is no literal, is too large or of another form.
    """
    form = FORMS.get((name or "").replace("-", "_"), ANY)
    try:
        if len(text) > (MAX_OPTION if name else MAX_LINE):
            raise ValueError("too long")
        value, _ = _value(ast.parse(text.strip(), mode="eval").body)
        if form.fits(value):
            return value
    except (SyntaxError, ValueError, TypeError, ArithmeticError, MemoryError, RecursionError):
        pass  # refused below, whatever is wrong with it
    raise ConfigurationError(
        f"{name or 'an option'} is {shortened(text)}; fairseq would run it as Python, so that only"
        f" {form.words} is taken, such as {form.example}"
    )


def check_name(name: str, source: str) -> None:
    """Refuse the name of an option that a file may not set, or that is more than a name.

    "user-dir=FOLDER: true" would be a bare switch that fairseq takes apart again.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{source}: {shortened(name)}: an option's name is a word")
    if (reason := RUNS_CODE.get(name.replace("_", "-"))) is not None:
        raise ConfigurationError(f"{source}: {name}: a file does not set this option; {reason}")


def shortened(text: str, width: int = 60) -> str:
    """Return the text as one short line in quotation marks."""
    return repr(text) if len(text) <= width else repr(text[: width - 3] + "...")


def _value(node: ast.expr) -> tuple[Any, int]:
    """Return a node's value, and how many items it holds; ValueError for what is no literal."""
    match node:
        case ast.Constant(value=value) if value is not ...:
            return value, 1
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            values, size = _values(elements)
            return _COLLECTIONS[type(node)](values), size
        case ast.Dict(keys=keys, values=entries) if None not in keys:
            names, first = _values([key for key in keys if key is not None])
            values, second = _values(entries)
            return dict(zip(names, values, strict=True)), first + second
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value, _ = _value(operand)
            return (-_number(value) if isinstance(sign, ast.USub) else _number(value)), 1
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _combined(_value(left), operation, _value(right))
    raise ValueError(type(node).__name__)


def _values(nodes: Sequence[ast.expr]) -> tuple[list[Any], int]:
    found = [_value(node) for node in nodes]
    size = 1 + sum(size for _, size in found)
    if size > MAX_ITEMS:
        raise ValueError("too many items")
    return [value for value, _ in found], size


def _combined(
    left: tuple[Any, int], operation: ast.operator, right: tuple[Any, int]
) -> tuple[Any, int]:
    (a, a_size), (b, b_size) = left, right
    size = 1
    if isinstance(a, list | tuple) and isinstance(operation, ast.Add) and type(a) is type(b):
        size = a_size + b_size
    elif isinstance(operation, ast.Mult) and isinstance(a, list | tuple) and type(b) is int:
        size = a_size * max(b, 0)
    elif isinstance(operation, ast.Mult) and isinstance(b, list | tuple) and type(a) is int:
        size = b_size * max(a, 0)
    else:
        _number(a), _number(b)
    if size > MAX_ITEMS:
        raise ValueError("too many items")
    return _OPERATORS[type(operation)](a, b), size


def _number(value: Any) -> Any:
    if not _is_number(value):
        raise ValueError("no number")
    return value


def check_options(options: object, source: str) -> None:
    """Refuse options that would run code, or read the environment, when fairseq builds from them.

    Args:
        options: mappings and Namespaces in one another, as a checkpoint's cfg or args holds them
        source: the file that they were read from, for error messages

    Raises ConfigurationError that names the source, the option and its value.
    """
    for name, value in _entries(options):
        try:
            known = name.replace("-", "_") in FORMS
            if known and value and not value.startswith("${"):
                evaluate(value, name)
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {error}") from None
        if _RESOLVER.search(value):
            raise ConfigurationError(
                f"{source}: {name} is {shortened(value)}: a file may not ask for what is not in"
                " it, such as this machine's environment; only ${option} is taken"
            )


def check_state(state: Mapping[str, Any], path: object) -> None:
    """The same for a checkpoint that was read from `path`."""
    for part in ("cfg", "args"):
        check_options(state.get(part), str(path))


def _entries(options: object) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of all strings in nested options; what holds itself is visited once."""
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
