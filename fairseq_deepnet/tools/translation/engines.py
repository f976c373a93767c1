"""Translation engines for raw text: fairseq and CTranslate2.

Both engines run the same beam search, but only fairseq scores the language token at the start of a
translation (--decoder-langtok). Only `Translator` imports torch and fairseq, which takes seconds.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fairseq_deepnet import records
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.subwords import decode_line, encode_lines, load_model
from fairseq_deepnet.tools.corpora.text import is_blank
from fairseq_deepnet.tools.export import AGAIN, BLANK, KEYS, MAX_LENGTH, NO_CTRANSLATE2, RECORD

BATCH: Final = 64
"""Sentences per batch on a GPU, and on a CPU with fairseq."""
CPU_BATCH: Final = 16
"""Sentences per batch for CTranslate2 on a CPU.

At each step, CTranslate2 copies the state of every sentence. This is fastest if the states fit in a
core's cache (see docs/reports/export.md).
"""
WINDOW: Final = 1024
"""Number of lines per thread that are sorted by length and translated together."""
NEVER: Final = [[BLANK]]
"""Tokens that CTranslate2 must not produce: fairseq never outputs <pad>."""


class Hypothesis(NamedTuple):
    """A translation and its score, the natural log-probability divided by length ** lenpen."""

    text: str
    score: float


class Engine(ABC):
    """A loaded model that translates raw text, line by line and in order, to detokenised text."""

    cut: int = 0
    """Number of lines that were truncated so far because they were too long for the model."""

    @abstractmethod
    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        """Return each line's translations, best first; the engine's settings give their number."""

    def nbest(
        self, lines: Sequence[str], direction: Direction, count: int
    ) -> list[list[Hypothesis]]:
        """Return `count` translations of each line. Translations of blank lines are empty."""
        filled = [line for line in lines if not is_blank(line)]
        results = iter(self.hypotheses(filled, direction) if filled else [])
        empty = [Hypothesis("", 0.0)] * count
        return [empty if is_blank(line) else next(results)[:count] for line in lines]

    def translate(self, lines: Sequence[str], direction: Direction) -> list[str]:
        """Return the best translation of each line."""
        return [best[0].text for best in self.nbest(lines, direction, 1)]


class Translator(Engine):
    """Engine that translates with fairseq's task and beam search, as fairseq-generate does.

    Args:
        folder: the data folder used to train the model, or one with the same dictionary.
        arguments: options of fairseq-generate (`--beam`, `--lenpen`, `--max-tokens` ...).
        cpu: if True, ignore GPUs.

    Raises:
        ValueError: with fairseq's message, if fairseq rejects an option.
    """

    def __init__(
        self, checkpoint: Path, folder: DataFolder, arguments: Sequence[str], cpu: bool
    ) -> None:
        import torch
        from fairseq import checkpoint_utils, tasks, utils

        from fairseq_deepnet.tools.fairseq_options import parse_generation, quiet
        from fairseq_deepnet.tools.trained_model import task_arguments

        self.folder = folder
        words = [str(folder.path.resolve()), "--path", str(checkpoint.resolve())]
        words += task_arguments(checkpoint, folder)
        with quiet():
            self.config = parse_generation([*words, *arguments])
            self.task = tasks.setup_task(self.config.task)
            self.models, _ = checkpoint_utils.load_model_ensemble([str(checkpoint)], task=self.task)
        self.cuda = torch.cuda.is_available() and not cpu
        for model in self.models:
            if self.config.common.fp16:
                model.half()
            if self.config.common.bf16:
                model.to(dtype=torch.bfloat16)
            if self.cuda:
                model.cuda()
            model.prepare_for_inference_(self.config)
        self.max_positions = utils.resolve_max_positions(
            self.task.max_positions(), *[model.max_positions() for model in self.models]
        )

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        """Return the `--nbest` best translations of each line with their scores."""
        import torch
        from fairseq import utils

        # a task translates one direction at a time
        settings = self.task.args if self.folder.is_multilingual else self.task.cfg
        settings.source_lang, settings.target_lang = direction
        generator = self.task.build_generator(self.models, self.config.generation)
        words, ignored = self.task.target_dictionary, generator.symbols_to_strip_from_output
        result: list[list[Hypothesis]] = [[] for _ in lines]
        for batch in self._batches(lines, direction.source):
            inputs = batch["net_input"]
            sample = {"net_input": {key: inputs[key] for key in ("src_tokens", "src_lengths")}}
            if self.cuda:
                sample = utils.move_to_cuda(sample)
            with torch.inference_mode():
                hypotheses = self.task.inference_step(generator, self.models, sample)
            for number, entries in zip(batch["id"].tolist(), hypotheses, strict=True):
                best = entries[: self.config.generation.nbest]
                tokens = (entry["tokens"].int().cpu() for entry in best)
                pieces = (words.string(line, extra_symbols_to_ignore=ignored) for line in tokens)
                texts = self.folder.decode(pieces, direction.target)
                scores = (float(entry["score"]) for entry in best)
                result[number] = list(map(Hypothesis, texts, scores))
        return result

    def _batches(self, lines: Sequence[str], language: str) -> Iterator[dict[str, Any]]:
        """Yield batches of lines, shortest first, with the line indices under "id"."""
        import torch

        from fairseq_deepnet.tools.fairseq_options import quiet

        limit = self.max_positions[0] - 1  # a language token may be added
        encode, sentences = self.task.source_dictionary.encode_line, []
        for line in self.folder.encode(lines, language):
            tokens = encode(line, add_if_not_exist=False).long()
            if len(tokens) > limit:
                self.cut += 1
                tokens = torch.cat([tokens[: limit - 1], tokens[-1:]])
            sentences.append(tokens)
        with quiet():
            lengths = list(map(len, sentences))
            most = self.config.dataset.max_tokens
            iterator = self.task.get_batch_iterator(
                dataset=self.task.build_dataset_for_inference(sentences, lengths),
                # a longer line is a batch of its own; a language token may be added
                max_tokens=most and max(most, max(lengths) + 1),
                max_sentences=self.config.dataset.batch_size,
                max_positions=self.max_positions,
                disable_iterator_cache=True,
            )
            batches = iterator.next_epoch_itr(shuffle=False)
        yield from batches


class CTranslate2Model(Engine):
    """A model in a folder written by `deepnet export --to ctranslate2`.

    Args:
        batch: number of sentences per batch; by default, a number that is fast on the device.
        nbest: number of translations per sentence.
        at_once: if True, all threads work on one batch, for the lowest latency. Otherwise, each
            thread has its own batch, for the highest throughput.
        cpu: if True, ignore GPUs.

    Raises ValueError if CTranslate2 is not installed, or the folder is damaged or not an export.
    """

    def __init__(
        self,
        folder: Path,
        beam: int = 5,
        lenpen: float = 1.0,
        batch: int | None = None,
        nbest: int = 1,
        threads: int = 1,
        at_once: bool = False,
        cpu: bool = False,
    ) -> None:
        # on processors with VNNI, AVX-512 is an eighth faster; older ones lower their clock for it
        processor = Path("/proc/cpuinfo")
        if processor.is_file() and "avx512_vnni" in processor.read_text("utf-8", "replace"):
            os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
        try:
            import ctranslate2
        except ModuleNotFoundError as error:
            raise ValueError(NO_CTRANSLATE2) from error
        if not (folder / RECORD).is_file():
            raise ValueError(f"{folder} has no {RECORD}; {AGAIN}")
        self.record = records.read_record(folder / RECORD, KEYS, AGAIN)
        files = self.record.get("files") or {}
        records.refuse_changed(folder, files, files, folder / RECORD)
        self.search = {"beam_size": beam, "length_penalty": lenpen, "num_hypotheses": nbest}
        self.tokens: dict[str, Any] = self.record.get("language_tokens") or {}
        self.models = {
            language: load_model(folder / name)
            for language, name in self.record["subwords"].items()
        }
        longest_source, longest_target = map(int, self.record["max_positions"])
        self.limit = longest_source - 2  # room for </s> and a language token
        self.longest = min(MAX_LENGTH, longest_target - 1)  # includes the target prefix
        device = "cuda" if not cpu and ctranslate2.get_cuda_device_count() else "cpu"
        self.batch = batch or (CPU_BATCH if device == "cpu" else BATCH)
        share = at_once or device != "cpu"
        self.translator = ctranslate2.Translator(
            str(folder),
            device,
            inter_threads=1 if share else threads,
            intra_threads=threads if share else 1,
        )

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        """Return the best translations of each line with their scores."""
        tokens, named = self.tokens.get("tokens", {}), self.tokens.get("source")
        prefix = [tokens[direction.target]] if self.tokens.get("target") else []
        first = [tokens[direction.source if named == "src" else direction.target]] if named else []
        pieces = [line.split() for line in encode_lines(self.models[direction.source], lines, 1)]
        self.cut += sum(len(line) > self.limit for line in pieces)
        results = self.translator.translate_batch(
            [[*first, *line[: self.limit]] for line in pieces],
            [prefix] * len(lines) if prefix else None,
            max_batch_size=self.batch,
            **self.search,
            return_scores=True,
            suppress_sequences=NEVER,
            max_input_length=0,  # truncated above, where lines are counted
            max_decoding_length=self.longest,
        )
        model = self.models[direction.target]
        return [
            [
                Hypothesis(decode_line(model, " ".join(words[len(prefix) :])), score)
                for words, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]
