"""What the project computes for a user, written down, to prove that a refactoring changes nothing.

    python benchmarks/frozen.py record before.json --checkout OLD
    python benchmarks/frozen.py record after.json --checkout NEW --checkpoints before.files
    python benchmarks/frozen.py compare before.json after.json

Five sections: the arguments that configs and recipes stand for, the bytes of data folders, the
losses of short trainings, what becomes of checkpoints, and reports. --only takes sections and
patterns of entries: `--only arguments 'losses/admin*'`. An entry that is recorded is skipped by a
further run with the same file; one that failed is tried again. Several runs may fill one file at
the same time, with an --only each. --pairs 5 uses five of the Tatoeba pairs instead of all 72.

A checkout is driven through its commands and scripts alone: older and newer ones, whatever their
modules are called. Use clean clones: what lies in data/ and runs/ changes what a dry run says.
before.files keeps the data folders, checkpoints and run folders that were made; with --checkpoints
another checkout trains on, resumes, exports, translates and reports these. Paths, times and the
fields that depend on them are replaced; `compare` prints a line or a unified diff for each
difference and ends with status 1 if there is one. Real text is read from --shared
(../shared/data), with multi30k/ and tatoeba/ in it.
"""

from __future__ import annotations

import argparse
import difflib
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

SCHEMES: Final = [
    *("deepnorm", "post-ln", "post-ln-init", "ds-init", "admin", "admin-log"),
    *("rezero", "r-fixup", "t-fixup", "pre-ln", "dlcl", "normformer"),
]

CORPORA: Final[dict[str, tuple[str, str]]] = {
    "multi30k.de-en": ("preprocess_multi30k.sh", ""),
    "multi30k_lm.en": ("preprocess.sh multi30k-lm", ""),
    "multi30k_multilingual": ("preprocess.sh multi30k-multilingual", ""),
    "sample.de-en": ("preprocess.sh sample", ""),
    "multi30k.fr-cs": (
        "preprocess_multi30k.sh",
        "SRC=fr TGT=cs SUBWORDS=unigram JOINT=0 MAX_WORDS=30 VOCAB_SIZE=3000",
    ),
    "multi30k_moses.de-en": (
        "preprocess.sh moses",
        "SRC=de TGT=en MERGES=3000 LOWERCASE=1 HOLD_OUT=23 JOINED=1 JOINT=1",
    ),
    "tatoeba": ("preprocess_opus100.sh", "VOCAB_SIZE=16000"),
}
"""Data folder -> the script that makes it, and variables; the first three are trained on."""
KEPT: Final = list(CORPORA)[:3]

COMMON: Final = (
    "--dropout 0.1 --optimizer fused_adam --adam-betas (0.9,0.98) --lr 1e-3 --seed 1 --cpu"
    " --lr-scheduler inverse_sqrt --warmup-updates 4 --max-tokens 500 --num-workers 0"
    " --no-epoch-checkpoints --log-format json --log-interval 5"
)
SIDE: Final = "--{0}-layers 2 --{0}-embed-dim 32 --{0}-ffn-embed-dim 64 --{0}-attention-heads 2"
SHAPE: Final = (
    f"{SIDE.format('encoder')} {SIDE.format('decoder')} --share-all-embeddings"
    " --arch deepnet_transformer"
)
CRITERION: Final = "label_smoothed_cross_entropy"
PAIR: Final = f"{SHAPE} --criterion chunked_{CRITERION} --label-smoothing 0.1"
LM: Final = "--task language_modeling --sample-break-mode eos --tokens-per-sample 128"
MANY: Final = (
    "--task translation_multi_simple_epoch --encoder-langtok tgt --source-dict DATA/dict.txt"
    " --target-dict DATA/dict.txt --lang-dict DATA/languages.txt --sampling-method temperature"
    " --lang-pairs cs-en,de-en,en-cs,en-de,en-fr,fr-en --sampling-temperature 1.5"
    " --virtual-data-size 6000"
)
TRAININGS: Final[dict[str, tuple[str, str]]] = {
    **{scheme: (KEPT[0], f"{PAIR} --residual-scheme {scheme}") for scheme in SCHEMES},
    "stock transformer": (KEPT[0], f"{PAIR} --arch transformer"),
    "stock criterion and adam": (KEPT[0], f"{PAIR} --criterion {CRITERION} --optimizer adam"),
    "cross-entropy": (KEPT[0], f"{SHAPE} --criterion chunked_cross_entropy"),
    "bf16": (KEPT[0], f"{PAIR} --bf16"),
    "clipped, two batches an update": (KEPT[0], f"{PAIR} --clip-norm 0.5 --update-freq 2"),
    "activations checkpointed": (KEPT[0], f"{PAIR} --checkpoint-activations-every 1"),
    "3L-1L": (KEPT[0], f"{PAIR} --encoder-layers 3 --decoder-layers 1 --encoder-layerdrop 0.3"),
    "monitored": (KEPT[0], f"{PAIR} --monitor-interval 5"),
    "stops where it diverges": (KEPT[0], f"{PAIR} --lr 1e4 --on-divergence stop"),
    "not watched": (KEPT[0], f"{PAIR} --on-divergence off"),
    "language model": (
        KEPT[1],
        f"{LM} {SIDE.format('decoder')} --arch deepnet_transformer_lm"
        " --criterion chunked_cross_entropy --share-decoder-input-output-embed",
    ),
    "masked language model": (
        KEPT[1],
        f"{LM} --task masked_lm {SIDE.format('encoder')} --arch deepnet_masked_lm"
        " --criterion masked_lm",
    ),
    "multilingual": (KEPT[2], f"{PAIR} {MANY}"),
}
"""Name -> data folder (DATA), and the options of fairseq-train after COMMON."""
TOLD: Final = ["deepnorm", "language model", "masked language model", "multilingual"]
"""Trainings of which the arguments in the checkpoint are noted, too."""
RESUMED: Final = [*SCHEMES, "bf16", "language model", "masked language model", "multilingual"]
RUNS: Final = {"deepnorm": ("2", "1"), "post-ln": ("2", "1"), "pre-ln": ("3", "2")}
"""Runs that are kept: scheme -> layers per side and seed."""
RUN_OPTIONS: Final = (
    "--residual-scheme {scheme} --encoder-layers {depth} --decoder-layers {depth} --seed {seed}"
    " --save-interval-updates 50 --keep-interval-updates 3"
)

# fairseq-train; what its Trainer is given to log goes into a file unrounded
TRAIN: Final = """
import sys
out = sys.argv.pop(1)
from fairseq_cli.train import cli_main
from fairseq.trainer import Trainer
inner = Trainer._reduce_and_log_stats
def noted(self, outputs, sample_size, grad_norm=None):
    words = [f"update {self.get_num_updates()}" if grad_norm is not None else "valid"]
    words += [float(output["loss"]).hex() for output in outputs]
    words += [] if grad_norm is None else ["gradient norm", float(grad_norm).hex()]
    with open(out, "a", encoding="utf-8") as file:
        print(*words, file=file)
    return inner(self, outputs, sample_size, grad_norm)
Trainer._reduce_and_log_stats = noted
sys.exit(cli_main())
"""

CHANGING: Final = (
    (r"[\w./-]*/frozen_\w{8}(?!\w)", "WORK"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(\+\d\d:\d\d|Z)?", "TIME"),
    (r'"(train_|valid_)?(wall|train_wall|wps|ups|gb_free|seconds|sha256|corpus_sha256|modified|revision|hostname|version)":'
     r' ("[^"]*"|[\d.e+-]+|null)', r'"\1\2": ...'),
    (r"\b[0-9a-f]{40}\b(-dirty)?", "REVISION"),
    (r"tcp://127\.0\.0\.1:\d+", "tcp://127.0.0.1:PORT"),
    (r"(\d+ hours?,? )?(\d+ min(utes)?,? )?\b\d+(\.\d+)? (s|seconds)\b", "SECONDS"),
    (r"(/tmp/[a-z0-9]+)[._][A-Za-z0-9_]{6,8}\b", r"\1.XXXXXX"),
)  # fmt: skip
"""Patterns of what differs from run to run, and what is written instead."""
FIXED: Final = {
    **{"LC_ALL": "C.UTF-8", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "THREADS": "1"},
    **{"CUDA_VISIBLE_DEVICES": "", "DEEPNET_SKIP_SETUP": "1"},
}
"""The environment of every command, beside places."""
TEXT: Final = {".json", ".md", ".csv", ".tsv", ".yaml", ".txt", ".jsonl"}


class FailedError(Exception):
    """A command ended with a status that is not due."""


def asked(only: list[str], section: str, name: str) -> bool:
    """Return whether an entry is one of those that --only names."""
    entry = f"{section}/{name}"
    return not only or any(section == p or fnmatch.fnmatch(entry, p) for p in only)


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Recorder:
    """Runs the commands of one checkout and notes what comes out.

    Args:
        out: the JSON file; what is in it is not done again
        checkout: the project's folder
        kept: folder of the data, checkpoints and runs that are used; out's own is filled on the way
        shared: folder of real text
        work: a folder for everything else
        only: what is asked for
    """

    def __init__(
        self,
        out: Path,
        checkout: Path,
        kept: Path | None,
        shared: Path,
        work: Path,
        only: list[str],
    ) -> None:
        self.out, self.checkout, self.shared, self.work = out, checkout, shared, work
        self.own = out.with_suffix(".files")
        self.kept = kept or self.own
        self.only = only
        self.failed: list[str] = []
        venv = Path(sys.prefix)
        self.environment = FIXED | {
            "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(venv),
            "PYTHONPATH": str(checkout),
            "HOME": str(work / "home"),
            "TMPDIR": str(work / "tmp"),
        }
        for folder in (self.own, work / "home", work / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[str, Any]:
        """Return what the file holds."""
        known = json.loads(self.out.read_text(encoding="utf-8")) if self.out.exists() else {}
        return {"seconds": {}} | known

    def plain(self, text: str) -> str:
        """Return text without the paths of this machine, and without times."""
        places = {"WORK": self.work, "KEPT": self.kept, "CHECKOUT": self.checkout}
        places |= {"SHARED": self.shared, "VENV": Path(sys.prefix)}
        for name in sorted(places, key=lambda name: -len(str(places[name]))):
            text = text.replace(str(places[name]), name)
        for pattern, name in CHANGING:
            text = re.sub(pattern, name, text)
        return text

    def run(
        self, *words: object, due: tuple[int, ...] = (0,), said: bool = False, **more: object
    ) -> str:
        """Return what a command prints, and with `said` what it says on standard error, too."""
        environment = self.environment | {name: str(value) for name, value in more.items()}
        command = [str(word) for word in words]
        done = subprocess.run(
            command, env=environment, cwd=self.work, capture_output=True, encoding="utf-8",
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode not in due:
            lines = (done.stdout + done.stderr).splitlines()
            tail = "\n".join(line[-300:] for line in lines[-15:])
            raise FailedError(self.plain(f"exit status {done.returncode} of {command}\n{tail}"))
        status = f"exit status {done.returncode}\n" if done.returncode else ""
        errors = f"\n--- standard error\n{done.stderr}" if said or done.returncode else ""
        return self.plain(status + done.stdout.replace("\0", "\n") + errors)

    def deepnet(self, *words: object, **more: Any) -> str:
        """Run `deepnet`."""
        return self.run(sys.executable, "-m", "fairseq_deepnet.cli", *words, **more)

    def script(self, name: str, *words: object, **more: Any) -> str:
        """Run a script of the checkout."""
        return self.run("bash", self.checkout / "scripts" / name, *words, **more)

    def files(self, folder: Path) -> dict[str, str]:
        """Return what each file of a folder holds: the text of records, digests of all else."""
        return {
            str(path.relative_to(folder)): self.plain(path.read_text(encoding="utf-8"))
            if path.suffix in TEXT
            and path.stat().st_size < 100_000
            and not re.search(r"dict\.|vocabulary", path.name)
            else sha256(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix != ".log"
        }

    def weights(self, path: Path) -> dict[str, str]:
        """Return digests of a checkpoint's names and numbers, its scheme and its arguments."""
        import torch

        torch.serialization.add_safe_globals([argparse.Namespace])
        state = torch.load(path, map_location="cpu", weights_only=True)
        names, numbers = hashlib.sha256(), hashlib.sha256()
        for name, tensor in sorted(state["model"].items()):
            names.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            numbers.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        model = (state.get("cfg") or {}).get("model") or state.get("args")
        model = model if isinstance(model, dict) else vars(model)
        options = "\n".join(f"{name}: {value}" for name, value in sorted(model.items()))
        found = {"names": names.hexdigest(), "numbers": numbers.hexdigest()}
        found["record"] = str(model.get("residual_record"))
        return found | {"arguments": self.plain(options)}

    def fresh(self, name: str, of: Path | None = None) -> Path:
        """Return a path in the work folder where nothing is, or a copy of a folder."""
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        if of is not None:
            shutil.copytree(of, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def wants(self, section: str) -> bool:
        """Return whether any entry of a section is asked for."""
        heads = [pattern.split("/")[0] for pattern in self.only]
        return not heads or any(fnmatch.fnmatch(section, head) for head in heads)

    def note(
        self, section: str, name: str, make: Callable[..., Any], *words: Any, **more: Any
    ) -> None:
        """Write down what a call returns, unless it is there or not asked for."""
        entry = f"{section}/{name}"
        known = self.read().get(section, {}).get(name, "FAILED")
        if not asked(self.only, section, name) or not str(known).startswith("FAILED"):
            return
        begun = time.monotonic()
        try:
            value = make(*words, **more)
        except Exception as error:  # whatever fails is written down, and tried again
            value = f"FAILED: {error}"
            self.failed.append(entry)
            print(f"{entry} {value}", file=sys.stderr)
        seconds = round(time.monotonic() - begun, 1)
        with (self.own / "lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # others may fill the same file
            found = self.read()
            found.setdefault(section, {})[name] = value
            found["seconds"][entry] = seconds
            part = self.out.with_suffix(".part")
            part.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
            part.replace(self.out)
        print(f"{seconds:6.1f} s  {entry}", flush=True)

    # 1. arguments

    def arguments(self) -> None:
        """Note what configs and recipes stand for."""
        for config in sorted(path.stem for path in (self.checkout / "configs").glob("*.yaml")):
            words = ["train", config, "--dry-run", "--gpus=8"]
            self.note("arguments", f"deepnet train {config}", self.deepnet, *words)
        for arch in ("deepnet_transformer", "deepnet_transformer_lm", "deepnet_masked_lm"):
            self.note("arguments", f"deepnet options {arch}", self.deepnet, "options", arch)
        options = ["--dry-run", "--gpus", "8"]
        for path in sorted((self.checkout / "configs/sweeps").glob("*.yaml")):
            sweep, words = path.stem, ["sweep", path.stem, *options]
            self.note("arguments", f"deepnet sweep {sweep}", self.deepnet, *words)
        for path in sorted((self.checkout / "scripts").glob("*.sh")):
            self.note("arguments", f"{path.name} --help", self.script, path.name, "--help")
        for line in DRY_RUNS:
            settings = dict(word.split("=", 1) for word in line.split() if word[0].isupper())
            words = [word for word in line.split() if not word[0].isupper()]
            settings = {"DRY_RUN": "1", "GPUS": "0"} | settings
            more = {"said": True, "due": (0, 2), **settings}  # 2: what is asked for is refused
            self.note("arguments", line, self.script, *words, **more)
        data = self.kept / "data" / KEPT[0]
        for name in ("train_multi30k.sh", "train_iwslt14.sh"):
            settings = {"DRY_RUN": "1", "GPUS": "2", "DATA": str(data)}
            self.note("arguments", f"{name} with data", self.script, name, said=True, **settings)

    # 2. data

    def make_data(self, name: str, out: Path, languages: str = "") -> None:
        """Make a data folder by its script."""
        script, settings = CORPORA[name]
        more = dict(word.split("=", 1) for word in settings.split())
        text = self.shared / "multi30k"
        if name == "tatoeba":
            raw = self.fresh("tatoeba")
            with tarfile.open(self.shared / "tatoeba/tatoeba.tar.xz") as archive:
                archive.extractall(raw, filter="data")
            more |= {"RAW": str(raw), "LANGS": languages, "UNPACKED": str(self.fresh("unpacked"))}
        elif name == "multi30k_moses.de-en":
            more |= {"TRAIN": str(text / "train"), "TEST": str(text / "test")}
        elif name != "sample.de-en":
            more["RAW"] = str(text)
        self.script(*script.split(), OUT=out, WORKERS=2, **more)

    def data(self, pairs: int) -> None:
        """Note the bytes of data folders."""
        for name in CORPORA:
            languages = " ".join(TATOEBA.split()[:pairs]) if pairs else ""
            entry = f"{name} {pairs} pairs" if name == "tatoeba" and pairs else name
            self.note("data", entry, self.data_folder, name, languages)

    def data_folder(self, name: str, languages: str) -> dict[str, str]:
        """Return the files of a data folder."""
        out = self.fresh(f"data/{name}")
        self.make_data(name, out, languages)
        found = self.files(out)
        for beside in sorted(out.parent.glob(f"{name}.*")):
            if beside.is_file():
                found[beside.name] = self.plain(beside.read_text(encoding="utf-8"))
        shutil.rmtree(out)
        return found

    def needed(self) -> None:
        """Make what later sections use and is not kept yet."""
        for name in KEPT:
            place = self.kept / "data" / name
            if not place.exists():
                self.make_data(name, place)

    # 3. losses

    def train(self, name: str, updates: int, restore: Path | None = None) -> dict[str, str]:
        """Return losses, weights and monitored quantities of a training; keep its checkpoint."""
        corpus, options = TRAININGS[name]
        data = self.kept / "data" / corpus
        folder, log = self.fresh("training"), self.work / "losses.txt"
        log.unlink(missing_ok=True)
        words: list[object] = [data, "--user-dir", self.checkout / "fairseq_deepnet"]
        words += ["--save-dir", folder, "--max-update", updates, *COMMON.split()]
        words += options.replace("DATA/", f"{data}/").split()
        words += [] if restore is None else ["--restore-file", restore]
        due = tuple(range(128)) if "diverges" in name else (0,)
        said = self.run(sys.executable, "-c", TRAIN, log, *words, due=due)
        found = {"losses": log.read_text(encoding="utf-8")}
        if due != (0,):
            found["ended"] = said.splitlines()[0]
        last = folder / "checkpoint_last.pt"
        if last.exists():
            found |= self.weights(last)
            if name not in TOLD:
                del found["arguments"]
        for path in folder.rglob("*.jsonl"):
            found[path.name] = self.plain(path.read_text(encoding="utf-8"))
        if restore is None and self.kept == self.own and last.exists():
            (self.own / "checkpoints").mkdir(exist_ok=True)
            shutil.copy(last, self.own / "checkpoints" / f"{name}.pt")
        return found

    def losses(self) -> None:
        """Note the losses of 20 updates, bit for bit."""
        for name in TRAININGS:
            self.note("losses", name, self.train, name, 20)

    # 4. checkpoints

    def checkpoints(self) -> None:
        """Note what becomes of kept checkpoints and runs."""
        text = self.work / "lines.de"
        data = self.kept / "data" / KEPT[0]
        lines = (data / "text/test.de").read_text(encoding="utf-8").splitlines()[:40]
        text.write_text("\n".join([*lines, "", "Zwei Hunde\n"]), encoding="utf-8")
        for name in RESUMED:
            path = self.kept / "checkpoints" / f"{name}.pt"
            self.note("checkpoints", f"{name} resumed", self.train, name, 23, path)
        for name in SCHEMES:
            path = self.kept / "checkpoints" / f"{name}.pt"
            self.note("checkpoints", f"{name} to fairseq", self.export, path, "fairseq")
            self.note("checkpoints", f"{name} to ctranslate2", self.export, path, "ctranslate2")
        for scheme in RUNS:
            self.note("checkpoints", f"run {scheme}", self.make_run, scheme)
        run = self.kept / "runs" / "deepnorm"
        self.note("checkpoints", "run resumed", self.resume_run, run)
        last = run / "checkpoints/checkpoint_last.pt"
        words = ["translate", last, text, "--cpu", "--data", data]
        self.note("checkpoints", "translated", self.deepnet, *words)
        words += ["--nbest", "2", "--beam", "3", "--lenpen", "0.6"]
        words += ["--batch-sentences", "7"]
        self.note("checkpoints", "translated, two best", self.deepnet, *words)
        self.note("checkpoints", "generated", self.generate, last)
        self.note("checkpoints", "average", self.average, run)
        many = ["translate", self.kept / "checkpoints/multilingual.pt", text, "--cpu"]
        many += ["--src", "de", "--tgt", "fr", "--data", self.kept / "data" / KEPT[2]]
        self.note("checkpoints", "translated, multilingual", self.deepnet, *many)

    def export(self, checkpoint: Path, target: str) -> dict[str, str]:
        """Return the weights that `deepnet export` writes."""
        out = self.fresh("export")
        out = out / "model.pt" if target == "fairseq" else out
        words = ["export", checkpoint, "--to", target, "--data", self.kept / "data" / KEPT[0]]
        said = {"said": self.deepnet(*words, "--out", out, due=(0, 2))}
        if not out.exists():
            return said
        return said | (self.weights(out) if target == "fairseq" else self.files(out))

    def make_run(self, scheme: str) -> dict[str, Any]:
        """Return what a run folder of scripts/train.sh holds; keep it, scored."""
        depth, seed = RUNS[scheme]
        run = self.fresh(f"runs/{scheme}")
        settings = {"DATA": self.kept / "data" / KEPT[0], "GPUS": 0, "RUN": run}
        options = RUN_OPTIONS.format(scheme=scheme, depth=depth, seed=seed).split()
        self.script("train.sh", "multi30k_tiny", *options, **settings)
        found = self.run_folder(run)
        settings = {"GPUS": 0, "PROCESSES": 1, "BEAM": 2}
        found["scored"] = self.script("eval_bleu.sh", run, "--", "--max-len-b", "20", **settings)
        if self.kept == self.own:
            shutil.copytree(run, self.own / "runs" / scheme, dirs_exist_ok=True)
        scores = self.files(run / "scores")
        return found | {f"scores {name}": value for name, value in scores.items()}

    def run_folder(self, run: Path) -> dict[str, Any]:
        """Return a run's records, the lines of its log that hold numbers, and its weights."""
        log = self.plain((run / "train.log").read_text(encoding="utf-8")).splitlines()
        numbers = [line[line.index("{") :] for line in log if '{"' in line]
        paths = [path for path in sorted(run.iterdir()) if path.suffix in TEXT]
        found = {path.name: self.plain(path.read_text(encoding="utf-8")) for path in paths}
        found["train.log"] = "\n".join(numbers)
        found["checkpoints"] = "\n".join(
            sorted(path.name for path in (run / "checkpoints").iterdir())
        )
        return found | {"numbers": self.weights(run / "checkpoints/checkpoint_last.pt")["numbers"]}

    def resume_run(self, run: Path) -> dict[str, Any]:
        """Return what scripts/train.sh makes of a kept run with three further updates."""
        copy = self.fresh("run", run)
        settings = {"DATA": self.kept / "data" / KEPT[0], "GPUS": 0, "RUN": copy, "RESUME": 1}
        options = RUN_OPTIONS.format(scheme="deepnorm", depth=2, seed=1).split()
        self.script("train.sh", "multi30k_tiny", *options, "--max-update", "203", **settings)
        return self.run_folder(copy)

    def generate(self, checkpoint: Path) -> str:
        """Return the hypotheses of fairseq-generate, in the order of the corpus."""
        words = [self.kept / "data" / KEPT[0], "--path", checkpoint, "--cpu", "--max-len-b", "20"]
        words += ["--user-dir", self.checkout / "fairseq_deepnet"]
        words += ["--beam", "2", "--max-tokens", "2000"]
        lines = self.run("fairseq-generate", *words).splitlines()
        return "\n".join(sorted(line for line in lines if line.startswith(("H-", "P-"))))

    def average(self, run: Path) -> dict[str, str]:
        """Return the weights of scripts/average.sh."""
        out = self.fresh("average") / "mean.pt"
        out.parent.mkdir()
        self.script("average.sh", run, N=2, OUT=out)
        return self.weights(out)

    # 5. reports

    def reports(self) -> None:
        """Note what is said of models, plans and finished runs."""
        for line in CHECKS:
            words = ["check", *line.split(), "--encoder-layers", "3", "--decoder-layers", "2"]
            self.note("reports", f"check {line}", self.deepnet, *words, due=(0, 1))
        run = self.kept / "runs" / "deepnorm"
        self.note("reports", "check: run", self.deepnet, "check", run, due=(0, 1))
        for line in PLANS:
            self.note("reports", f"plan {line}", self.deepnet, "plan", *line.split(), due=(0, 1, 2))
        runs = [self.kept / "runs" / scheme for scheme in RUNS]
        self.note("reports", "report", self.report, *runs)
        words = ["report", *runs, "--significance", "--samples", "200"]
        self.note("reports", "report --significance", self.deepnet, *words)
        data = self.kept / "data"
        hypotheses = sorted((run / "scores").glob("*.txt"))[:1]
        words = ["score", "--references", data / KEPT[0] / "text/test.en"]
        words += ["--hypotheses", *hypotheses]
        self.note("reports", "score", self.deepnet, *words, "--json")
        for name in ("language model", "masked language model"):
            words = ["perplexity", self.kept / "checkpoints" / f"{name}.pt", "--gpus", 0]
            words += ["--data", data / KEPT[1]]
            self.note("reports", f"perplexity: {name}", self.deepnet, *words)
        settings = {"DATA": data / KEPT[2], "GPUS": 0, "BEAM": 1, "PROCESSES": 1}
        settings["DIRECTIONS"] = "de-fr,en-cs"
        words = ["eval_bleu.sh", self.kept / "checkpoints/multilingual.pt"]
        words += ["--", "--max-len-b", "8"]
        self.note("reports", "directions", self.scored, *words, **settings)
        self.note("reports", "sweep", self.sweep)

    def report(self, *runs: Path) -> dict[str, str]:
        """Return the tables of `deepnet report`."""
        out = self.fresh("report")
        said = self.deepnet("report", *runs, "--out", out)
        return {"said": said} | self.files(out)

    def scored(self, script: str, *words: Any, **settings: Any) -> dict[str, str]:
        """Return the scores that a script writes."""
        out = self.fresh("scores")
        said = self.script(script, *words, OUT=out, **settings)
        return {"said": said} | self.files(out)

    def sweep(self) -> dict[str, str]:
        """Return the tables of a tiny comparison of methods."""
        runs = self.fresh("sweep")
        settings: dict[str, Any] = {"SEEDS": "1,2", "GPUS": 0}
        settings["DATA"] = self.kept / "data" / KEPT[0]
        words = ("compare_methods", "scheme=deepnorm,pre-ln", "depth=2", "max-update=2")
        said = self.script("sweep.sh", *words, RUNS=runs, **settings)
        found = self.files(runs)
        return {"said": said} | {name: text for name, text in found.items() if "report" in name}


RECIPES: Final = (
    "sample multi30k multi30k_lm multi30k_masked_lm multi30k_multilingual iwslt14 wmt17"
)
OPUS100: Final = "train_opus100.sh GPUS=8 NODES=16 LAUNCHER=slurm"
DRY_RUNS: Final = [
    *(f"train_{name}.sh GPUS={gpus}" for gpus in (0, 4) for name in RECIPES.split()),
    *(f"{OPUS100} DEPTH={depth}" for depth in (6, 10, 12, 50, 100, 500)),
    *(f"train_wmt17.sh GPUS=8 SCHEME={scheme} DEPTH=50" for scheme in SCHEMES),
    *(f"train_wmt17.sh GPUS=8 SIZE=large-{width}" for width in (512, 768, 1024)),
    "train_multi30k.sh DEPTH=100 SRC=fr TGT=cs SEED=3 PRECISION=bf16",
    "train_iwslt14.sh DEPTH=100 GPUS=1 PRECISION=fp16 MEMORY=16",
    *(f"train.sh {name} GPUS=8" for name in ("analysis", "mm102", "multi30k_6l", "multi30k_tiny")),
    "train.sh multi30k_6l_stock GPUS=1",
    "train.sh opus100_1000 GPUS=8 MEMORY=32",
    "train.sh wmt17_base GPUS=8 NODES=2 NODE_RANK=1 MASTER_ADDR=node0 LAUNCHER=torchrun --lr 1e-3",
    "train.sh wmt17_base GPUS=8 NODES=2 LAUNCHER=slurm PRECISION=fp32 PREEMPTION_GRACE=30",
]
"""Scripts with variables and options, run with DRY_RUN=1."""
CHECKS: Final = [
    "--arch deepnet_transformer",
    "--arch deepnet_transformer --residual-scheme admin --init stock",
    "--arch transformer",
    "--arch transformer --claim deepnorm",
    "--arch deepnet_transformer --residual-scheme pre-ln --claim post-ln",
]
PLANS: Final = [
    "wmt17_base",
    "wmt17_base --gpus 8",
    "wmt17_base --memory 1",
    "wmt17_large_1024 --memory 16 --gpus 4",
    "opus100 --vocabulary 250000 --gpus 128",
    "opus100_1000 --memory 32 --gpus 8",
    "iwslt14 encoder-layers=100 decoder-layers=100 --gpus 1 --memory 12",
    "mm102 --gpus 256",
    "multi30k --vocabulary 4000 --gpus 0",
    "multi30k residual-scheme=dlcl --vocabulary 4000",
    "multi30k_lm --vocabulary 4000",
    "multi30k_masked_lm --vocabulary 4000",
    "--arch deepnet_transformer_opus100_200 --vocabulary 64000",
]
TATOEBA: Final = "de fr ru ja ar br yi"  # --pairs N: the first N of them


def differences(before: Any, after: Any, name: str) -> Iterator[str]:
    """Yield a line, or a unified diff, for each difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            place = f"{name} / {key}" if name else key
            if key not in after or key not in before:
                yield f"{place}: only in {'BEFORE' if key in before else 'AFTER'}"
            else:
                yield from differences(before[key], after[key], place)
    elif before != after:
        texts = [str(before).splitlines(), str(after).splitlines()]
        if max(map(len, texts)) <= 1:
            yield f"{name}: {before} -> {after}"
        else:
            lines = difflib.unified_diff(texts[0], texts[1], "BEFORE", "AFTER", lineterm="", n=1)
            yield "\n".join([f"{name}:", *(f"    {line}" for line in lines)])


def compare(before: Path, after: Path, only: list[str]) -> int:
    """Print the differences of two records; 1 if there are any."""
    sides = [json.loads(path.read_text(encoding="utf-8")) for path in (before, after)]
    for side in sides:
        side.pop("seconds")
        for section, entries in list(side.items()):
            side[section] = {k: v for k, v in entries.items() if asked(only, section, k)}
            if not side[section]:
                del side[section]
    found = list(differences(sides[0], sides[1], ""))
    print(*found, sep="\n", end="\n" if found else "")
    counts = [sum(map(len, side.values())) for side in sides]
    print(f"{len(found)} differences; {counts[0]} and {counts[1]} entries")
    return 1 if found else 0


def main() -> int:
    """Record or compare."""
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("out", type=Path)
    here = "the project's folder (this one)"
    record.add_argument("--checkout", type=Path, default=root, help=here)
    record.add_argument("--checkpoints", type=Path, help="BEFORE.files, to use what it keeps")
    record.add_argument("--shared", type=Path, default=root.parent / "shared/data")
    record.add_argument("--pairs", type=int, default=0, help="Tatoeba pairs (0: all)")
    patterns = "sections, or patterns of SECTION/NAME"
    record.add_argument("--only", nargs="+", default=[], help=patterns)
    both = commands.add_parser("compare")
    both.add_argument("before", type=Path)
    both.add_argument("after", type=Path)
    both.add_argument("--only", nargs="+", default=[], help="as for record")
    args = parser.parse_args()
    if args.command == "compare":
        return compare(args.before, args.after, args.only)
    kept = args.checkpoints and args.checkpoints.resolve()
    if kept and not kept.is_dir():
        parser.error(f"there is no folder {kept}")
    with tempfile.TemporaryDirectory(prefix="frozen_") as work:
        paths = args.out.resolve(), args.checkout.resolve(), kept, args.shared.resolve(), Path(work)
        recorder = Recorder(*paths, args.only)
        if any(map(recorder.wants, ("losses", "checkpoints", "reports"))):
            recorder.needed()
        for section in ("losses", "checkpoints", "reports", "arguments"):
            if recorder.wants(section):
                getattr(recorder, section)()
        if recorder.wants("data"):
            recorder.data(args.pairs)
    print(f"failed: {recorder.failed}" if recorder.failed else "done")
    return 1 if recorder.failed else 0


if __name__ == "__main__":
    sys.exit(main())
