"""fairseq runs strings out of checkpoints, configs and data folders as code; here it reads them.

It calls `eval` on options of some models, optimisers, criterions and data sets, and torch's
weights-only loading does not protect from that: the payload is a plain string. In every module of
fairseq, the name `eval` is made to mean `literals.evaluate`, also in those that are imported later.
What a checkpoint asks for is looked at when it is read, too, so that also a model that is never
built is refused, with the file's name.

One place hands a file's name to a shell: the index of a .fasta file in a data folder, whose name
fairseq makes of what it finds there. It is quoted.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import linecache
import re
import shlex
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import fairseq.checkpoint_utils
import fairseq.data.fasta_dataset
import omegaconf

from .. import literals
from ..wrapping import wrap

PACKAGES: Final = ("fairseq", "fairseq_cli", "examples")
"""fairseq's top-level modules; its examples import one another by the last name."""

_OPTION: Final = re.compile(r"\beval\((?:\w+\.)*(\w+)\)")


def evaluate(value: object, *namespaces: object) -> Any:
    """Return the value of a literal: what `eval` means in fairseq's modules, and nothing runs.

    Raises ConfigurationError for what is no literal, TypeError, as eval does, for what is no text.
    """
    if not isinstance(value, str):
        raise TypeError(f"a literal is text, not {type(value).__name__}")
    caller = sys._getframe(1)
    line = linecache.getline(caller.f_code.co_filename, caller.f_lineno)
    found = _OPTION.search(line)
    return literals.evaluate(value, found[1] if found and found[1] in literals.FORMS else None)


class _Finder(importlib.abc.MetaPathFinder):
    """Let fairseq's modules that are imported from now on begin with `eval` as it is here."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find else None
            if spec is not None:
                _evaluate_nothing_in(spec.loader)
                return spec  # type: ignore[no-any-return]
        return None


def _evaluate_nothing_in(loader: Any) -> None:
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: types.ModuleType) -> None:
        module.__dict__["eval"] = evaluate
        execute(module)

    loader.exec_module = exec_module


def apply() -> None:
    """Replace `eval` in fairseq, check what its checkpoints ask for, quote what goes to a shell."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType):
            module.__dict__["eval"] = evaluate
    sys.meta_path.insert(0, _Finder())

    @wrap(fairseq.checkpoint_utils, "load_checkpoint_to_cpu")
    def load_checkpoint_to_cpu(load: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        state = load(path, *args, **kwargs)
        config = state.get("cfg")
        if isinstance(config, omegaconf.Container):
            config = omegaconf.OmegaConf.to_container(config, resolve=False)
        literals.check_state({**state, "cfg": config}, path)
        return state

    @wrap(fairseq.data.fasta_dataset.FastaDataset, "_build_index")
    def _build_index(build_index: Any, self: Any, path: str) -> Any:
        return build_index(self, shlex.quote(str(Path(path).absolute())))
