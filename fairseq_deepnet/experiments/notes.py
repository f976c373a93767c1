"""What stands below a table: what each number is, so that nobody compares what is not alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.definition import Layout
from fairseq_deepnet.experiments.paper import Key, Law
from fairseq_deepnet.experiments.runs import MEASURES, RunResult, Status, tokens_of, updates_of
from fairseq_deepnet.tools.configs import Config
from fairseq_deepnet.tools.evaluation.run_scores import TOKENISED, decoding
from fairseq_deepnet.tools.tables import listed

APART: Final = ("lr", "adam-eps", "freeze-norms", "max-update")
"""Options that part the runs of one place; they are told where runs differ in them."""


def below_published(
    published: paper.PublishedTable, measure: str, results: Sequence[RunResult]
) -> list[str]:
    """Return the notes of one of the paper's tables."""
    lines = [
        f"paper: {published.certainty}, {paper.REFERENCE}, {published.source}: {published.metric}"
    ]
    if published.certainty == "digitised":
        lines.append("≈: read off the paper's plot, to about 0.1 BLEU or 0.01 of a loss")
    if measure == "valid_loss":
        loss = "label-smoothed validation loss, bits a token"
        with_loss = [run for run in results if run.valid_loss]
        facts = [f"{loss}, {run.updates:,} updates, {_data(run.config)}" for run in with_loss]
        lines += grouped("ours", list(zip(with_loss, facts, strict=True)))
    else:
        lines += grouped("ours", [(run, score_facts(run)) for run in results if run.score])
    return lines + endings(results)


def score_facts(result: RunResult) -> str:
    """Return what a run's score is: metric, signature, split, search, model, length, data."""
    score = result.score
    if score is None:
        return ""
    tokenised = TOKENISED in score.values
    signature = score.signatures.get(TOKENISED if tokenised else "bleu", "")
    kind = "tokenised BLEU" if tokenised else "sacreBLEU (detokenised)"
    facts = score.facts
    lines = f"{score.of}, {int(facts.get('lines') or 0):,} sentences"
    if "directions" in facts:
        lines += f" in {facts['directions']} directions"
        if (expected := facts.get("expected") or facts["directions"]) != facts["directions"]:
            lines += f" of {expected}, INCOMPLETE"
        lines += " (BLEU: mean over the trained ones)"
        if facts.get("mixed"):
            lines += ", MIXED: not all scored the same way"
    updates = int(facts.get("updates") or result.updates)
    parts = (f"{kind} {signature}".strip(), lines, decoding(facts), f"{updates:,} updates")
    return ", ".join([*parts, str(_data(result.config))])


def _data(config: Config) -> object:
    return config.recipe.get("data")


def below_own(
    measures: Sequence[str], statuses: Iterable[Sequence[Status]], results: Sequence[RunResult]
) -> list[str]:
    """Return the notes of a table of a sweep's own.

    Args:
        statuses: of each of its entries how the runs in it ended
    """
    lines = [f"{MEASURES[name].heading}: {MEASURES[name].meaning}" for name in measures]
    level = unigram_level(results)
    if level is not None and any("nll" in name for name in measures):
        lines.append(f"a model that knows only how frequent subwords are has a nll of {level:.2f}")
    lines.append(f"trained: {trained(results)}")
    if "bleu" in measures:
        lines += grouped("BLEU", [(run, score_facts(run)) for run in results if run.score])
    seeds_of = [seeds for seeds in statuses if seeds]
    counts = sorted({len(seeds) for seeds in seeds_of})
    if counts and counts[-1] > 1:
        seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        lines.append(
            "mean ±sample standard deviation over those runs of a cell that came through; "
            f"{seeds} seeds were run"
        )
    if any(Status.DIVERGED in seeds for seeds in seeds_of):
        lines.append(
            "diverged: see below; in brackets after it the mean of what such runs reached, which "
            "counts in no other cell"
        )
    return lines + endings(results)


def of_best(
    layout: Layout,
    rows: Iterable[Key],
    columns: Iterable[Key],
    members: Sequence[tuple[dict[str, Key], RunResult]],
    sets: Mapping[str, Collection[str]],
) -> list[str]:
    """Return which values of the factors `best` stand in each entry of a table, and in what else
    the runs of its panels differ.

    Args:
        members: the runs in the table, with their places
        sets: factor -> options that it sets
    """
    named = " and ".join(layout.best)
    lines = [f"{named}: of those run, that with the lowest last validation loss"]
    options = [(place, run.config.options) for place, run in members]
    told = [name for name in APART if len({paper.key(given.get(name)) for _, given in options}) > 1]
    chosen = {}
    for place, given in options:
        values = [f"{name} {place[name]}" for name in layout.best if name in place]
        of_place = {name for factor in place for name in sets.get(factor, ())}
        values += [
            f"{name} {paper.key(given.get(name, 'as by default'))}"
            for name in told
            if name not in of_place
        ]
        if values:
            chosen[place[layout.rows], place[layout.columns]] = " ".join(values)
    for row in rows:
        texts = [
            f"{column}: {chosen[row, column]}" for column in columns if (row, column) in chosen
        ]
        lines += [f"  {row}, {layout.columns} {', '.join(texts)}"] * bool(texts)
    return lines


def of_laws(laws: dict[Key, Law], names: dict[Key, str], beside: dict[str, Key]) -> list[str]:
    """Return fitted laws of depth with what they miss, and those of the paper's lines."""
    if not laws:
        return []
    lines = ["L(d) = A log(d) + B, natural logarithm, least squares; d layers a side:"]
    for key, law in laws.items():
        missed = ", ".join(f"{depth:g}: {value:+.2f}" for depth, value in law.residuals)
        lines.append(f"  {names[key]}: {law}; residuals {missed}")
    for name, line in beside.items():
        table = paper.table(name)
        unit = "" if "-" in table.label("depth", "10") else "; there d is layers in all"
        said = f"  the paper's {table.source}, {line}, {table.title}: {table.law(line)}"
        lines.append(said + unit)
    return lines


def below_runs(results: Sequence[RunResult]) -> list[str]:
    """Return the notes of runs side by side."""
    lines = ["validation losses: the lowest of the run, bits a token; nll is without smoothing"]
    scored = [run for run in results if run.score]
    lines += grouped("BLEU", [(run, score_facts(run)) for run in scored])
    chrf = {run.score.signatures.get("chrf") for run in scored if run.score}
    lines += [f"chrF: {signature}" for signature in sorted(filter(None, chrf))]
    return lines + endings(results)


def trained(results: Sequence[RunResult]) -> str:
    """Return shape, length, rate and data of runs in one line: each value that occurs."""

    def values(read: Callable[[Config], object]) -> str:
        found = {paper.key(value) for run in results if (value := read(run.config)) is not None}
        keys = paper.ordered(sorted(found))
        return ", ".join(f"{int(key):,}" if key.isdecimal() else key for key in keys) or "?"

    def option(name: str) -> str:
        return values(lambda config: config.options.get(name))

    def folder(config: Config) -> str | None:
        return None if _data(config) is None else Path(str(_data(config))).name

    shapes = {shape for run in results if (shape := _shape(run.config))}
    return (
        f"{', '.join([*sorted(shapes), ''])}"
        f"{values(updates_of)} updates of {values(tokens_of)} tokens, "
        f"learning rate {option('lr')}, warm-up {option('warmup-updates')}, {values(folder)}, "
        f"seeds {option('seed')}"
    )


def _shape(config: Config) -> str:
    """Return width, FFN and heads; empty where the arch alone says them."""
    names = ("embed-dim", "ffn-embed-dim", "attention-heads")
    found = [config.options.get(f"encoder-{name}") for name in names]
    return "" if None in found else "/".join(map(str, found))


def unigram_level(results: Sequence[RunResult]) -> float | None:
    """Return what a unigram model has on the data of all runs; None where that is not one value."""
    found = {round(run.unigram, 4) for run in results if run.unigram is not None}
    return found.pop() if len(found) == 1 else None


def grouped(title: str, items: Sequence[tuple[RunResult, str]]) -> list[str]:
    """Return one line for each different text, with the runs that it is true of."""
    groups: dict[str, dict[str, None]] = {}
    for run, text in items:
        groups.setdefault(text, {})[run.name] = None
    if len(groups) == 1:
        return [f"{title}: {next(iter(groups))}"]
    lines = []
    for text, names in groups.items():
        lines.append(f"{title}, {listed(list(names), 4)}: {text}")
    return lines


def endings(results: Sequence[RunResult]) -> list[str]:
    """Return why runs are not done, a line each."""
    runs = {run.folder: run for run in results}.values()
    return [f"{r.name}: {r.reason or r.status}" for r in runs if r.status is not Status.DONE]
