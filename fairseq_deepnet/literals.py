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
    """What an option's literal may be.

    Arguments:
        words: the form, for error messages
        example: a value that is taken
        fits: whether a value has the form
    """

    words: str
    example: str
    fits: Callable[[Any], bool]


def _is_layers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(layer, list | tuple)
        and 2 <= len(layer) <= 4
        and all(type(number) is int for number in layer)
        for layer in value
    )


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or (type(value) is int and value in (0, 1))


def _is_switches(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return all(map(_is_switch, values))


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(number) in (int, float) for number in value)
    )


def _is_numbers(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return all(type(number) in (int, float) for number in values)


LAYERS: Final = Form("a list of tuples of 2 to 4 whole numbers", "[(512, 3)] * 20", _is_layers)
SWITCH: Final = Form("True or False", "True", _is_switch)
SWITCHES: Final = Form("True, False, or a list of these", "[True, False]", _is_switches)
PAIR: Final = Form("two numbers", "(0.9, 0.98)", _is_pair)
NUMBERS: Final = Form("numbers", "10000,20000", _is_numbers)
MAPPING: Final = Form("a dictionary", "{'name': 1}", lambda value: isinstance(value, dict))
ANY: Final = Form("a Python literal", "[(512, 3)] * 20", lambda value: True)

FORMS: Final[dict[str, Form]] = {
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "conv_feature_layers": LAYERS,
    "conv_aggregator_layers": LAYERS,
    "character_filters": LAYERS,
    "feature_encoder_spec": LAYERS,
    "encoder_attention": SWITCHES,
    "decoder_attention": SWITCHES,
    "self_attention": SWITCHES,
    "project_input": SWITCHES,
    "gated_attention": SWITCHES,
    "downsample": SWITCHES,
    "pretrained": SWITCHES,
    "left_pad_source": SWITCH,
    "left_pad_target": SWITCH,
    "encoder_glu": SWITCH,
    "decoder_glu": SWITCH,
    "weight_softmax": SWITCH,
    "adam_betas": PAIR,
    "adamax_betas": PAIR,
    "adafactor_eps": PAIR,
    "lamb_betas": PAIR,
    "adaptive_input_cutoff": NUMBERS,
    "adaptive_softmax_cutoff": NUMBERS,
    "encoder_kernel_size_list": NUMBERS,
    "decoder_kernel_size_list": NUMBERS,
    "pipeline_balance": NUMBERS,
    "pipeline_devices": NUMBERS,
    "pipeline_encoder_balance": NUMBERS,
    "pipeline_encoder_devices": NUMBERS,
    "pipeline_decoder_balance": NUMBERS,
    "pipeline_decoder_devices": NUMBERS,
    "extra_data": MAPPING,
    "extra_lang_pairs": MAPPING,
    "langtoks": MAPPING,
    "sampling_weights": MAPPING,
    "xformers_att_config": MAPPING,
    "wer_args": ANY,
    "model_overrides": MAPPING,
}
"""Options that fairseq evaluates -> what they may be. A test compares it with fairseq's source."""

RUNS_CODE: Final = {
    "user-dir": "it is a folder of code, and always this plugin",
    "post-save-script": "it is a command to run",
}
"""Options of fairseq-train that a file may not set."""

_NAME: Final = re.compile(r"[A-Za-z]\w*(-\w+)*")
_RESOLVER: Final = re.compile(r"\$\{\s*[\w.]+\s*:")
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
        case ast.List(elts=elements):
            values, size = _values(elements)
            return values, size
        case ast.Tuple(elts=elements):
            values, size = _values(elements)
            return tuple(values), size
        case ast.Set(elts=elements):
            values, size = _values(elements)
            return set(values), size
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
    if type(value) not in (int, float):
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
