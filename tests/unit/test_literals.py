"""Safe evaluation of literals, and its use in every fairseq module."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import json
import re
from argparse import Namespace
from pathlib import Path

import fairseq
import fairseq_cli
import pytest
import torch

from fairseq_deepnet import compat
from fairseq_deepnet.checkpoints import load_checkpoint
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.literals import EVALUATED, evaluate
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.fairseq_options import quiet

CODE = "__import__('pathlib').Path('ran').touch()"

# fairseq's helpers that evaluate their argument
HELPERS = ("eval", "eval_str_list", "eval_str_dict", "eval_bool")
MODULES = (*HELPERS, "utils", "options")


@functools.cache
def sources() -> list[tuple[str, str]]:
    """Return name and text of each fairseq module, without the examples."""
    modules = []
    for top in (fairseq, fairseq_cli):
        root = Path(str(top.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            if "examples" not in parts:
                name = ".".join(parts).removesuffix(".__init__")
                modules.append((name, path.read_text(encoding="utf-8")))
    return modules


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("[(512, 3)] * 20", "encoder_layers"),
        ("[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)] + [(512,2,2)]", "conv_feature_layers"),
        ("[(850, 6)] * 3 + [(850, 1)] * 1 + 4*[(850, 5)]", "decoder_layers"),
        (" (0.9, 0.98) ", "adam_betas"),
        ("0.9,0.98", "adam_betas"),
        ("[True, False] * 3", "decoder_attention"),
        ("{'mined': (None, 'tgt'), 'x': {1, 2}}", "langtoks"),
        ("('lexicon', 'lm', 2, -1)", "wer_args"),
        ("[1e-3 / 2, 2 - -1, +3, 4.5 * 2]", None),
        ("()", "conv_feature_layers"),
        ("None", None),
    ],
)
def test_a_literal_has_the_value_that_python_computes(text: str, option: str | None) -> None:
    assert evaluate(text, option) == builtins.eval(text.strip())


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (CODE, "encoder_layers"),
        (CODE, None),
        ("[(512, 3)] * 1000000000", "encoder_layers"),  # 8 GB of pointers
        ("[[[(1, 2)] * 1000] * 1000] * 1000", None),
        ("[0] * 10 ** 9", None),
        ("'a' * 1000000000", None),
        ("[" * 9000, None),
        ("-" * 9000 + "1", "adam_betas"),
        ("9" * 5000, None),
        ("1" + " + 1" * 200_000, None),
        ("[x for x in ()]", None),
        ("f'{1}'", None),
        ("True.__class__", None),
        ("{**{}}", None),
        ("{[]: 1}", None),
        ("1 / 0", None),
        ("1e308 * 10 if 1 else 2", None),
        ("\0", None),
    ],
)
def test_other_text_is_refused_in_one_line(text: str, option: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        evaluate(text, option)
    message = str(caught.value)
    assert message.startswith(f"{option or 'an option'} is ")
    assert "only a number or another literal" in message  # as for --encoder-layers six
    assert len(message) < 260
    assert "\n" not in message


def test_all_options_that_fairseq_evaluates_are_listed() -> None:
    options = set()
    calls = [
        node
        for _, text in sources()
        if re.search(r"\beval(_str_list|_str_dict|_bool)?\b", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]
    for call in calls:
        name = getattr(call.func, "id", getattr(call.func, "attr", None))
        kinds = [ast.unparse(word.value) for word in call.keywords if word.arg == "type"]
        if name == "add_argument" and any("eval_" in kind for kind in kinds):
            options.add(str(ast.literal_eval(call.args[-1])).lstrip("-").replace("-", "_"))
        elif name in HELPERS and ast.unparse(call.func).partition(".")[0] in MODULES:
            value = ast.unparse(call.args[0])
            options.add(value if "(" in value else value.rpartition(".")[2])
    assert options - EVALUATED == {
        *("x", "uf"),  # arguments of the helpers
        "line.strip()",  # of a manifest of speech units
        "getattr(override_args, 'model_overrides', '{}')",  # of the command line
    }
    assert EVALUATED - options == set()


def test_no_fairseq_module_evaluates_python() -> None:
    checked = set()
    for name, text in sources():
        if not re.search(r"(?<![.\w])eval\(", text):
            continue
        try:
            with quiet():
                module = importlib.import_module(name)
        except ImportError:
            continue  # the module needs a package that is not installed
        assert vars(module)["eval"] is compat.evaluate, name
        checked.add(name)
    assert {"fairseq.models.fconv", "fairseq.optim.adam", "fairseq.utils"} <= checked
    assert {"fairseq.data.codedataset", "fairseq_cli.eval_lm"} <= checked  # imported later


@pytest.mark.parametrize("part", ["cfg", "args"])
def test_a_checkpoint_with_code_in_any_evaluated_option_is_refused(
    part: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pt"
    for option in sorted(EVALUATED):
        inner = {"w2v_args": [{"deep": Namespace(**{option: CODE})}]}
        options = {"model": inner, "task": None} if part == "cfg" else Namespace(**inner)
        torch.save({"model": {}, part: options}, path)
        with pytest.raises(ConfigurationError, match=rf"checkpoint\.pt: {option} is .__import__"):
            load_checkpoint(path)


@pytest.mark.parametrize("language", ["--user-dir=/x", "-x", "../up", "a/b", "", "a b", None, 5])
def test_a_data_folder_with_other_text_as_a_language_is_refused(
    language: object, tmp_path: Path
) -> None:
    record = {"source": "de", "target": language}
    (tmp_path / "corpus.json").write_text(json.dumps(record), encoding="utf-8")
    message = "is not a language code" if isinstance(language, str) else "is damaged: 'target' is"
    with pytest.raises(ValueError, match=rf"corpus\.json.* {message}"):
        DataFolder.open(tmp_path)
    with pytest.raises(ValueError, match="is not a direction"):  # becomes a file's name
        Direction.parse(f"en-{language}/")
