"""`deepnet m2m`: score a multilingual model as in the paper's table 3, which follows M2M-100.

The command writes a test set to files named with the model's language codes, translates and scores
it like `deepnet evaluate`, and prints the average score beside the paper's.
"""

import argparse
import shutil
from pathlib import Path
from typing import Final

from sacrebleu.utils import SACREBLEU_DIR

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.files import ROOT, say, shown, whole
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.evaluation import evaluate, sets
from fairseq_deepnet.tools.evaluation.directions import number
from fairseq_deepnet.tools.scores import SUMMARY
from fairseq_deepnet.tools.tables import markdown
from fairseq_deepnet.tools.trained_model import choose_model, find_data

DOWNLOADS: Final = ROOT / "data" / "downloads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet m2m`."""
    add = parser.add_argument
    add("--set", default="flores101", choices=sets.sets(), help="test set (flores101)")
    raw = "the test set's published folder or archive (data/downloads/CORPUS)"
    add("--raw", type=Path, help=raw)
    add("--text", type=Path, help="folder for the text to translate (OUT/text)")
    evaluate.add_scoring_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Translate and score a test set, and print its table."""
    content = sets.definition(args.set)
    raw = raw_files(args.raw, content.get("download"))
    model = choose_model(args.target, args.average)
    data = find_data(model, args.data, args.spm)
    args.split, args.out = args.set, args.out or model.scores / args.set
    args.text = args.text or args.out / "text"
    args.tokenizer = args.tokenizer or content["tokenizer"]
    lines = sets.make(args.set, raw, args.text, data.languages)
    say(
        f"{args.set}: {len(lines):,} of {content['directions']:,} directions,"
        f" {sum(lines.values()):,} lines of text: {shown(args.text)}"
    )
    folder, text = evaluate.score(args)
    averages = read_record(folder / SUMMARY)["averages"]
    ours, column, table = averages["all"], content["paper"], paper.table("table3")
    rows = [[f"{table.source}, BLEU", column]]
    rows += [[label, str(table.value(key, column))] for key, label in table.names.items()]
    note = ""
    if ours["directions"] != content["directions"]:
        note = f" (over {ours['directions']:,} of {content['directions']:,} directions)"
    label = f"this model, beam {args.beam}, tok:{args.tokenizer or 'by language'}"
    rows.append([label, f"{number(ours['bleu'])}{note}"])
    print(f"{text}\n\n{markdown(rows)}\n\nThe paper's numbers: {table.metric}.")
    return 0


def raw_files(path: Path | None, corpus: str | None) -> Path | None:
    """Return the path of a test set's published files, or None if sacreBLEU provides the set.

    If the spBLEU model has been downloaded, it is also copied to sacreBLEU's folder.
    """
    spm = DOWNLOADS / "flores101" / "sacrebleu_tokenizer_spm.model"
    place = Path(SACREBLEU_DIR) / "models" / spm.name
    if spm.is_file() and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole(place) as part:
            shutil.copyfile(spm, part)
    if corpus is None:
        if path is not None:
            raise ValueError(f"--raw {path}: sacreBLEU provides this test set; leave out --raw")
        return None
    raw = path or DOWNLOADS / corpus
    if not raw.exists():
        raise FileNotFoundError(f"{raw} is missing: run `deepnet download {corpus}`, or set --raw")
    return raw
