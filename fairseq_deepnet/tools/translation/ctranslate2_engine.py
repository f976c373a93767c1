"""A folder of `deepnet export --to ctranslate2`, ready to translate: no fairseq model is built.

CTranslate2's search is fairseq's: the same candidates, length penalty and end. Lines of one call
are sorted by length and cut into batches by CTranslate2 itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet import records
from fairseq_deepnet.files import shown
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.subwords import decode_line, encode_lines, load_model
from fairseq_deepnet.tools.export import (
    AGAIN,
    BLANK,
    KEYS,
    MAX_LENGTH,
    NO_CTRANSLATE2,
    RECORD,
)
from fairseq_deepnet.tools.translation.engine import (
    BATCH,
    CPU_BATCH,
    Engine,
    Hypothesis,
    Search,
)

NEVER: Final = [[BLANK]]
"""What no translation holds: fairseq's <pad>, by its name in an export. fairseq forbids it, too."""


def read_record(folder: Path) -> dict[str, Any]:
    """Return what the export wrote about itself; ValueError for a folder that is no such export,
    that is damaged, or whose subwords this does not do.
    """
    try:
        record = records.read_record(folder / RECORD, KEYS, AGAIN)
    except FileNotFoundError as error:
        raise ValueError(
            f"{shown(folder)} has no {RECORD}, and without it nothing says how its subwords are "
            "made; write it with deepnet export --to ctranslate2"
        ) from error
    files = record.get("files") or {}
    records.refuse_changed(folder, files, files, folder / RECORD)
    if record["subwords"]["kind"] != "sentencepiece":
        raise ValueError(
            f"{shown(folder)} takes {record['subwords']['kind']} tokens, not raw text; "
            "ENGINE=fairseq scripts/eval_bleu.sh scores such models"
        )
    return record


class CTranslate2Model(Engine):
    """An exported model.

    Args:
        folder: as `deepnet export --to ctranslate2` wrote it.
        threads: cores to use.
        at_once: let the threads share a batch, which answers a single line soonest; otherwise each
            works on a batch of its own, which takes less time for many.
        compute_type: type of the matrix products; as exported by default.
        cpu: leave a GPU alone even if CTranslate2 sees one.

    Raises ValueError without CTranslate2, for a folder that is no export, and for a type that this
    machine cannot compute with.
    """

    def __init__(
        self,
        folder: Path,
        search: Search,
        *,
        threads: int = 1,
        at_once: bool = False,
        compute_type: str | None = None,
        cpu: bool = False,
    ) -> None:
        use_avx512()
        try:
            import ctranslate2
        except ModuleNotFoundError as error:
            raise ValueError(NO_CTRANSLATE2) from error
        self.record = read_record(folder)
        self.search = search
        self.tokens = self.record.get("language_tokens")
        self.models = {
            language: load_model(folder / name)
            for language, name in self.record["subwords"]["models"].items()
        }
        longest_source, longest_target = map(int, self.record["max_positions"])
        self.limit = longest_source - 2  # </s>, and a language token
        self.longest = min(MAX_LENGTH, longest_target - 1)  # as fairseq; the target prefix counts
        device = "cuda" if not cpu and ctranslate2.get_cuda_device_count() else "cpu"
        self.batch = search.batch or (CPU_BATCH if device == "cpu" else BATCH)
        known = sorted(ctranslate2.get_supported_compute_types(device))
        if compute_type is not None and compute_type not in known:
            raise ValueError(
                f"--quantization {compute_type}: this machine computes with {', '.join(known)};"
                " leave it out to let the exported type decide"
            )
        share = at_once or device != "cpu"
        try:
            self.translator = ctranslate2.Translator(
                str(folder),
                device,
                compute_type=compute_type or "default",
                inter_threads=1 if share else threads,
                intra_threads=threads if share else 1,
            )
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), "")
            raise ValueError(f"{shown(folder)} cannot be loaded: {reason}") from error

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        """Return the search's best translations of each line with their scores."""
        prefix = self._target_prefix(direction)
        encoded = encode_lines(self.models[direction.source], lines, 1)
        results = self.translator.translate_batch(
            [self._pieces(line, direction) for line in encoded],
            [prefix] * len(lines) if prefix else None,
            max_batch_size=self.search.batch_tokens or self.batch,
            batch_type="tokens" if self.search.batch_tokens else "examples",
            beam_size=self.search.beam,
            length_penalty=self.search.lenpen,
            num_hypotheses=self.search.nbest,
            return_scores=True,
            suppress_sequences=NEVER,
            max_input_length=0,  # `_pieces` cuts, and counts what it cuts
            max_decoding_length=self.longest,
        )
        model = self.models[direction.target]
        return [
            [
                Hypothesis(decode_line(model, " ".join(pieces[len(prefix) :])), score)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _target_prefix(self, direction: Direction) -> list[str]:
        """Return the pieces that every translation begins with: a language token, or none."""
        if self.tokens and self.tokens["target"]:
            return [self.tokens["tokens"][direction.target]]
        return []

    def _pieces(self, line: str, direction: Direction) -> list[str]:
        """Return the pieces of an encoded line, cut to what the model takes; a language token first
        where the model has one.
        """
        pieces = line.split()
        if len(pieces) > self.limit:
            self.cut += 1
            pieces = pieces[: self.limit]
        if self.tokens and self.tokens["source"]:
            named = direction.source if self.tokens["source"] == "src" else direction.target
            pieces = [self.tokens["tokens"][named], *pieces]
        return pieces


def use_avx512(processor: Path = Path("/proc/cpuinfo")) -> None:
    """Let CTranslate2 use AVX-512, which it does not use by itself; an eighth faster.

    Only on processors with VNNI: older ones lower their clock for it. What the environment says
    stands. It has to be said before CTranslate2 is first used in a process.
    """
    try:
        flags = processor.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if "avx512_vnni" in flags:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
