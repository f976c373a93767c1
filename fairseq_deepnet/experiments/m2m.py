"""`deepnet m2m`: score a multilingual model as M2M-100 and table 3 of the paper do.

A test set of tools/evaluation/sets.py is written with the model's language codes, then translated
and scored as by `deepnet evaluate`. The averages are printed beside the paper's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.files import ROOT, say, shown
from fairseq_deepnet.tools.evaluation import evaluate, sets
from fairseq_deepnet.tools.evaluation.directions import Summary, number
from fairseq_deepnet.tools.tables import markdown
from fairseq_deepnet.tools.trained_model import choose_model, find_data

DIRECTIONS: Final = {"wmt": 18, "opus": 30, "ted": 756, "flores": 7482}
"""Columns of the paper's table 3, with their numbers of directions."""
DOWNLOADS: Final = ROOT / "data" / "downloads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet m2m`."""
    parser.add_argument("--set", default="flores101", choices=sets.sets(), help="(flores101)")
    raw = "its published folder or archive (data/downloads/CORPUS)"
    parser.add_argument("--raw", type=Path, help=raw)
    parser.add_argument("--text", type=Path, help="folder for the text to translate (OUT/text)")
    evaluate.add_scoring_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Translate and score a test set, and print its table."""
    evaluate.refuse_options(args)
    content = sets.definition(args.set)
    raw = raw_files(args.raw, content.get("download"))
    model = choose_model(args.target, args.average)
    data = find_data(model, args.data)
    args.split, args.out = args.set, args.out or model.scores / args.set
    args.text = args.text or args.out / "text"
    name = evaluate.score_name(args, model.path.stem)
    args.tokenizer = args.tokenizer or content["tokenizer"]
    facts = sets.make(args.set, raw, args.text, data.languages)
    say(
        f"{args.set}: {facts['directions']:,} of {facts['of']:,} directions,"
        f" {sum(facts['lines'].values()):,} lines of text: {shown(args.text)}"
    )
    summary = evaluate.score_directions(args, model, data, name)
    print(f"{summary.text}\n\n{beside_paper(summary, content['paper'])}")
    return 0


def beside_paper(summary: Summary, column: str) -> str:
    """Return our average below the paper's numbers; it states if directions are missing."""
    table = paper.table("table3")
    ours = next(average for average in summary.averages if average.name == "all")
    rows = [[f"{table.source}, BLEU", column]]
    rows += [[label, str(table.value(key, column))] for key, label in table.names.items()]
    note = ""
    if ours.present != DIRECTIONS[column]:
        note = f" (over {ours.present:,} of {DIRECTIONS[column]:,} directions)"
    rows.append(["this model", f"{number(ours.means['bleu'])}{note}"])
    return f"{markdown(rows)}\n\nThe paper's numbers: {table.metric}."


def raw_files(given: Path | None, corpus: str | None) -> Path | None:
    """Return the path of a set's published files; None for a set that sacreBLEU provides.

    A spBLEU model that was downloaded with them is used unless FLORES101_SPM names another.
    """
    spm = DOWNLOADS / "flores101" / "sacrebleu_tokenizer_spm.model"
    if spm.is_file() and not os.environ.get("FLORES101_SPM"):
        os.environ["FLORES101_SPM"] = str(spm)
    if corpus is None:
        return None
    raw = given or DOWNLOADS / corpus
    if not raw.exists():
        raise FileNotFoundError(
            f"there is no {raw}: deepnet download {corpus}, or set RAW to what you have"
        )
    return raw
