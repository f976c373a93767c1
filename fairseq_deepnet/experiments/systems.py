"""Systems to be tested against each other: stored hypotheses of runs, grouped where seeds differ.

A run that differs from another in nothing but its seed is the same system trained once more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_deepnet.experiments.runs import find_runs, read_cell_record
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.provenance import sha256
from fairseq_deepnet.records import read_record
from fairseq_deepnet.stock_names import in_stock_names
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation.run_scores import decoding, read_score


@dataclass(frozen=True)
class Scored:
    """One run's translations of a test set.

    Args:
        file: the JSON of the score
        seed: of the training; None where no config says
        settings: all that makes the system but the seed: equal texts mean equal systems
        hypotheses: detokenised, in corpus order
        reference: the raw text that they were scored against
        digests: SHA-256 of the texts of the test set, source and reference
        signature: sacreBLEU's, in parts: tok, case ...
        decoding: search, engine and averaging in words
    """

    file: Path
    name: str
    seed: int | None
    settings: str
    hypotheses: list[str]
    reference: Path
    digests: frozenset[str]
    signature: dict[str, str]
    bleu: float
    decoding: str


class System(NamedTuple):
    """The runs of one system, by seed; without a config each run is a system of its own."""

    name: str
    runs: tuple[Scored, ...]


def find_systems(targets: Sequence[Path], baseline: Path | None) -> tuple[list[System], list[str]]:
    """Find the systems of run folders, folders of runs, or score files; the baseline's comes first.

    Returns them with a line for each run that has no score, and one where score files were named
    that were decoded differently. Raises FileNotFoundError, or ValueError for fewer than two
    systems and for scores that cannot be compared.
    """
    missing: list[str] = []
    files = [] if baseline is None else _score_files(baseline, [])
    if baseline is not None and not files:
        raise ValueError(f"--baseline {shown(baseline)}: it has no score; run scripts/eval_bleu.sh")
    for target in targets:
        files += _score_files(target, missing)
    several = {path.resolve(): path for path in files}
    systems = _grouped([read_scored(path) for path in several.values()])
    if len(systems) < 2:
        raise ValueError(
            "a test needs two systems that were scored: name more runs or score files"
            + "".join(f"; {line}" for line in missing)
        )
    runs = [run for system in systems for run in system.runs]
    _refuse_incomparable(runs, {path.resolve() for path in (baseline, *targets) if path})
    if len({run.decoding for run in runs}) > 1:
        each = (
            f"{system.name}: {' and '.join(sorted({run.decoding for run in system.runs}))}"
            for system in systems
        )
        missing.append(f"decoded differently: {'; '.join(each)}")
    return systems, missing


def _score_files(target: Path, missing: list[str]) -> list[Path]:
    """Return the score files of a target; add a line to `missing` for each run that has none."""
    if target.is_file():
        return [target]
    files = []
    for run in find_runs(target):
        score = read_score(run, read_cell_record(run).get("score"))
        if score is None:
            missing.append(f"{shown(run)} is not scored")
        elif (run / score.file).is_dir():
            raise ValueError(
                f"{shown(run)} is scored in many directions; name the score of one, as in "
                f"{shown(run / score.file)}/DIRECTION.json"
            )
        else:
            files.append(run / score.file)
    return files


def read_scored(file: Path) -> Scored:
    """Read a score with its hypotheses; an error names what is gone or is not as it was then."""
    try:
        record = read_record(file)
        signature = dict(part.split(":", 1) for part in record["bleu_signature"].split("|"))
        bleu, request = float(record["bleu"]), record["request"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{shown(file)} is no score of scripts/eval_bleu.sh ({error})") from error
    hypotheses = list(read_lines(file.with_suffix(".txt")))
    folders = file.resolve().parents
    run = next((one for one in folders[1:4] if (one / "config.yaml").is_file()), None)
    config = configs.recorded_config(run) if run else None
    try:
        reference, digests = _reference(file, record, request, config)
    except (KeyError, TypeError, StopIteration) as error:
        raise ValueError(
            f"{shown(file)} does not say what it was scored against ({error}); score it anew"
        ) from error
    settings, seed = str(file.resolve()), None
    if config is not None:
        options = in_stock_names(config.options)
        seed = options.pop("seed", None)
        settings = json.dumps([options, config.recipe, file.name], sort_keys=True, default=str)
    return Scored(
        file=file,
        name=(run or folders[1]).name,
        seed=None if seed is None else int(seed),
        settings=settings,
        hypotheses=hypotheses,
        reference=reference,
        digests=digests,
        signature=signature,
        bleu=bleu,
        decoding=decoding(record),
    )


def _reference(
    file: Path, record: dict[str, Any], request: dict[str, Any], config: configs.Config | None
) -> tuple[Path, frozenset[str]]:
    """Return the reference's file, unless it has changed, and the digests of both texts."""
    if "direction" in record:  # one of many directions
        wanted, source = request["reference"], request["source"]
        place = record.get("reference")
        if not place:
            data = str(config.recipe.get("data", "")) if config else ""
            direction = Direction.parse(record["direction"])
            place = DataFolder.open(inside_project(data)).text("test", direction, direction.target)
        path = inside_project(place)
    else:
        path = inside_project(record["reference"])
        wanted = request["data"][path.name]
        texts = [name for name in request["data"] if name.startswith(f"{record['split']}.")]
        source = next(request["data"][name] for name in texts if name != path.name)
    if not path.is_file():
        raise FileNotFoundError(f"the reference of {shown(file)} is gone: {path}")
    if sha256(path) != wanted:
        raise ValueError(
            f"{shown(path)} has changed since {shown(file)} was scored against it; score it anew"
        )
    return path, frozenset((wanted, source))


def _refuse_incomparable(runs: Sequence[Scored], named: Set[Path]) -> None:
    """Raise ValueError for another test set, reference or tokenisation than the first one's, and
    for another decoding unless both scores are among those `named` as files (resolved).
    """
    first = runs[0]
    for run in runs[1:]:
        pair = f"{shown(first.file)} and {shown(run.file)}"
        if run.digests != first.digests:
            raise ValueError(
                f"{pair} are scores of different test sets or references ({shown(first.reference)},"
                f" {shown(run.reference)}); a paired test needs the same sentences"
            )
        for key, meaning in (("tok", "tokenised"), ("case", "cased")):
            if run.signature.get(key) != first.signature.get(key):
                raise ValueError(
                    f"{pair} are {meaning} differently ({key}:{first.signature.get(key)}, "
                    f"{key}:{run.signature.get(key)}); score one of them as the other was"
                )
    for run in runs[1:]:
        are_named = {first.file.resolve(), run.file.resolve()} <= named
        if run.decoding != first.decoding and not are_named:
            raise ValueError(
                f"{shown(first.file)} ({first.decoding}) and {shown(run.file)} ({run.decoding}) "
                "are decoded differently; score one run as the other was, or name both score files"
            )


def _grouped(runs: Sequence[Scored]) -> list[System]:
    """Return runs that differ in their seed only as one system; names are made different."""
    groups: dict[str, list[Scored]] = {}
    for run in runs:
        groups.setdefault(run.settings, []).append(run)
    members = [tuple(sorted(group, key=lambda run: run.seed or 0)) for group in groups.values()]
    for group in members:
        seeds = [run.seed for run in group]
        if len(set(seeds)) < len(seeds):
            files = ", ".join(shown(run.file) for run in group)
            raise ValueError(f"the same system with the same seed more than once: {files}")
    # the shortest of three kinds of names by which all systems differ
    kinds = [(run.name, f"{run.name} {run.file.stem}", shown(run.file)) for run, *_ in members]
    distinct = [names for names in zip(*kinds, strict=True) if len(set(names)) == len(names)]
    return [System(name, group) for name, group in zip(distinct[0], members, strict=True)]
