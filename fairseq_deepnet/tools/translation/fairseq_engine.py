"""A trained model that translates raw text, in one direction after another, loaded once.

fairseq-generate loads its model again for every direction, which for thousands of directions would
be most of the time. This goes through the same task, generator and beam search.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.fairseq_options import quiet
from fairseq_deepnet.tools.trained_model import task_arguments
from fairseq_deepnet.tools.translation.engine import Engine, Hypothesis


class Translator(Engine):
    """Beam search over raw text.

    Args:
        checkpoint: any fairseq translation model
        folder: the data folder that it was trained on, or one with the same dictionary
        arguments: options of fairseq-generate (`--beam`, `--lenpen`, `--max-tokens` ...)
        cpu: leave a GPU alone even if one is visible

    Raises ValueError with fairseq's message for options that it does not take.
    """

    def __init__(
        self, checkpoint: Path, folder: DataFolder, arguments: Sequence[str], cpu: bool
    ) -> None:
        from fairseq import checkpoint_utils, tasks, utils

        self.folder = folder
        first = folder.directions("train")[0]
        words = [str(folder.path.resolve()), "--path", str(checkpoint.resolve())]
        words += task_arguments(checkpoint, folder)
        if folder.is_multilingual:
            words += ["--source-lang", first.source, "--target-lang", first.target]
        with quiet():
            self.config = fairseq_options.parse_generation([*words, *arguments])
            self.task = tasks.setup_task(self.config.task)
            self.models, _ = checkpoint_utils.load_model_ensemble(
                [str(checkpoint)],
                task=self.task,
                arg_overrides=ast.literal_eval(self.config.common_eval.model_overrides),
            )
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
        """Return the best `--nbest` of each line with their scores."""
        from fairseq import utils

        # the task works in one direction at a time
        settings = self.task.args if self.folder.is_multilingual else self.task.cfg
        settings.source_lang, settings.target_lang = direction
        generator = self.task.build_generator(self.models, self.config.generation)
        ignored = generator.symbols_to_strip_from_output
        result: list[list[Hypothesis]] = [[] for _ in lines]
        for batch in self._batches(lines, direction.source):
            inputs = batch["net_input"]
            sample = {"net_input": {key: inputs[key] for key in ("src_tokens", "src_lengths")}}
            if self.cuda:
                sample = utils.move_to_cuda(sample)
            with torch.inference_mode():
                found = self.task.inference_step(generator, self.models, sample)
            for number, hypotheses in zip(batch["id"].tolist(), found, strict=True):
                best = hypotheses[: self.config.generation.nbest]
                pieces = (
                    self.task.target_dictionary.string(
                        one["tokens"].int().cpu(), extra_symbols_to_ignore=ignored
                    )
                    for one in best
                )
                texts = self.folder.decode(pieces, direction.target)
                scores = (float(one["score"]) for one in best)
                result[number] = list(map(Hypothesis, texts, scores))
        return result

    def _tokens(self, line: str) -> torch.Tensor:
        dictionary = self.task.source_dictionary
        limit = self.max_positions[0] - 1  # a language token may join it
        tokens = dictionary.encode_line(line, add_if_not_exist=False).long()
        if len(tokens) > limit:
            self.cut += 1
            tokens = torch.cat([tokens[: limit - 1], tokens[-1:]])
        return tokens

    def _batches(self, lines: Sequence[str], language: str) -> Iterator[dict[str, Any]]:
        """Yield the lines in batches, the shortest first; "id" has their numbers."""
        tokens = [self._tokens(line) for line in self.folder.encode(lines, language)]
        lengths = [len(line) for line in tokens]
        with quiet():
            iterator = self.task.get_batch_iterator(
                dataset=self.task.build_dataset_for_inference(tokens, lengths),
                max_tokens=self.config.dataset.max_tokens,
                max_sentences=self.config.dataset.batch_size,
                max_positions=self.max_positions,
                disable_iterator_cache=True,
            )
            batches = iterator.next_epoch_itr(shuffle=False)
        yield from batches
