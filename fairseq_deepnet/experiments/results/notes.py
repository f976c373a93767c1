"""What stands below a table: what each number is, so that nobody compares what is not alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.results.law import Law, fit_published
from fairseq_deepnet.experiments.runs import MEASURES, RunResult, Status, tokens_of, updates_of
from fairseq_deepnet.tools.configs import Config
from fairseq_deepnet.tools.evaluation.run_scores import TOKENISED, decoding

_FEW: Final = 4
_KINDS: Final = {
    "bleu": "sacreBLEU (detokenised)",
    TOKENISED: "tokenised BLEU",
    "chrf": "chrF",
}


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
        lines += grouped("ours", [(run, _loss_facts(run)) for run in results if run.valid_loss])
    else:
        lines += grouped("ours", [(run, score_facts(run)) for run in results if run.score])
    return lines + endings(results)


def _loss_facts(result: RunResult) -> str:
    return (
        "label-smoothed validation loss, bits a token, "
        f"{result.updates:,} updates, {result.config.recipe.get('data')}"
    )


def score_facts(result: RunResult) -> str:
    """Return what a run's score is: metric, signature, split, search, model, length, data."""
    score = result.score
    if score is None:
        return ""
    metric = TOKENISED if TOKENISED in score.values else "bleu"
    facts = score.facts
    parts = [f"{_KINDS[metric]} {score.signatures.get(metric, '')}".strip()]
    lines = f"{facts.get('split', 'test')} set, {int(facts.get('lines') or 0):,} sentences"
    if "directions" in facts:
        lines += f" in {facts['directions']} directions"
        expected = facts.get("expected")
        if expected and expected != facts["directions"]:
            lines += f" of {expected}, INCOMPLETE"
        lines += " (BLEU: mean over the trained ones)"
        if facts.get("mixed"):
            lines += ", MIXED: not all scored the same way"
    parts.append(lines)
    parts.append(decoding(facts))
    parts.append(f"{int(facts.get('updates') or result.updates):,} updates")
    parts.append(str(result.config.recipe.get("data")))
    return ", ".join(parts)


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


def of_laws(laws: dict[Key, Law], names: dict[Key, str], beside: dict[str, Key]) -> list[str]:
    """Fitted laws of depth with what they miss, and those of the paper's lines in `beside`."""
    if not laws:
        return []
    lines = ["L(d) = A log(d) + B, natural logarithm, least squares; d layers a side:"]
    for key, law in laws.items():
        missed = ", ".join(f"{depth:g}: {value:+.2f}" for depth, value in law.residuals)
        lines.append(f"  {names[key]}: {law}; residuals {missed}")
    for name, line in beside.items():
        published = paper.table(name)
        theirs = fit_published(published, line)
        lines.append(f"  the paper's {published.source}, {line}, {published.title}: {theirs}")
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
    """Shape, length, rate and data of runs in one line: each value that occurs."""

    def values(read: Callable[[Config], object]) -> str:
        found = {paper.key(value) for run in results if (value := read(run.config)) is not None}
        keys = paper.ordered(sorted(found))
        return ", ".join(f"{int(key):,}" if key.isdecimal() else key for key in keys) or "?"

    shapes = {shape for run in results if (shape := _shape(run.config))}
    return (
        f"{', '.join([*sorted(shapes), ''])}"
        f"{values(updates_of)} updates of {values(tokens_of)} tokens, "
        f"learning rate {values(lambda config: config.options.get('lr'))}, "
        f"warm-up {values(lambda config: config.options.get('warmup-updates'))}, "
        f"{values(_data_name)}, "
        f"seeds {values(lambda config: config.options.get('seed'))}"
    )


def _data_name(config: Config) -> str | None:
    data = config.recipe.get("data")
    return None if data is None else Path(str(data)).name


def _shape(config: Config) -> str:
    """Width, FFN and heads; empty where the arch alone says them."""
    names = ("embed-dim", "ffn-embed-dim", "attention-heads")
    told = [config.options.get(f"encoder-{name}") for name in names]
    return "" if None in told else "/".join(map(str, told))


def unigram_level(results: Sequence[RunResult]) -> float | None:
    """What a unigram model has on the runs' data; None where it is not known or not the same."""
    found = {round(run.unigram, 4) for run in results if run.unigram is not None}
    return found.pop() if len(found) == 1 else None


def grouped(title: str, items: Sequence[tuple[RunResult, str]]) -> list[str]:
    """Return one line for each different text, with the runs that it is true of."""
    groups: dict[str, list[str]] = {}
    for run, text in items:
        names = groups.setdefault(text, [])
        names += [run.name] * (run.name not in names)
    if len(groups) == 1:
        return [f"{title}: {next(iter(groups))}"]
    return [f"{title}, {_some(names)}: {text}" for text, names in groups.items()]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def endings(results: Sequence[RunResult]) -> list[str]:
    """Why runs are not done, a line each."""
    lines = []
    for result in {run.folder: run for run in results}.values():
        if result.status is not Status.DONE:
            lines.append(f"{result.name}: {result.reason or result.status}")
    return lines
