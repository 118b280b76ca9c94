"""Trains the demonstration model and its draft.

    train.py sweep  --minutes 9            short runs of several shapes, a table, best.json
    train.py main   --minutes 7            the main model (shape from best.json or --config)
    train.py draft  --minutes 2            the draft, distilled from the main model
    train.py finish                        samples, acceptance, check against transformers, bundle
    train.py all    --minutes 9            main, draft and finish in one call

`--work` keeps everything between calls on one machine; `--out` receives what is to be kept: weight
shards, logs, and `extras.tar.gz` with the small files of both folders.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from configs import DRAFT, MAIN, draft_config, tiny_config
from dataset import Batches, TokenPart, encode_parts, evaluation_rows
from evaluate import acceptance, autocast, bits_per_character
from export import check_with_transformers, load_folder, save_folder, write_json
from make_data import ANNEAL_MIXTURE, MIXTURE, build_parts
from model import BOS, Gemma3, ModelConfig, flex_works, make_masks
from optimizer import make_optimizers, schedule
from samples import sample_text

HERE = Path(__file__).parent
FINISH_SECONDS = 90
EVALUATION_PARTS = ("held_out", "held_out_chats")


@dataclass
class Data:
    """Tokenised parts of one vocabulary, and what is needed to measure on them."""

    parts: dict[str, TokenPart]
    characters: dict[str, int]
    tokenizer_folder: Path


class Log:
    """Appends JSON lines to a file and prints them."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def write(self, **record: Any) -> None:
        """One line; floats are rounded for the reader."""
        tidy = {k: round(v, 5) if isinstance(v, float) else v for k, v in record.items()}
        line = json.dumps(tidy)
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy; the step to the next document is not predicted."""
    targets = targets.masked_fill(targets == BOS, -100)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def distillation_loss(logits: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    """0.8 KL(teacher || draft) + 0.2 cross-entropy."""
    real = (targets != BOS).flatten()
    student = logits.flatten(0, 1).float().log_softmax(-1)
    expected = teacher.flatten(0, 1).float().log_softmax(-1)
    divergence = (expected.exp() * (expected - student)).sum(-1)
    divergence = (divergence * real).sum() / real.sum()
    return 0.8 * divergence + 0.2 * next_token_loss(logits, targets)


class Trainer:
    """One training run under a wall-clock budget."""

    def __init__(
        self, model: Gemma3, data: Data, options: argparse.Namespace, log: Log, teacher: Gemma3 | None
    ) -> None:
        self.model, self.data, self.options, self.log, self.teacher = model, data, options, log, teacher
        self.device = next(model.parameters()).device
        self.optimizers = make_optimizers(model, options.lr, options.weight_decay)
        self.batches = Batches(
            data.parts, MIXTURE, options.rows, model.config.context, self.device, options.seed
        )
        self.loss_of: Callable[..., Tensor] = distillation_loss if teacher else next_token_loss
        if options.compile:
            model.compile_layers()
            self.loss_of = torch.compile(self.loss_of)
        model.dropout = options.dropout

    def step(self, progress: float) -> Tensor:
        """One update; returns the loss without waiting for it."""
        batch = self.batches.next()
        ids, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        masks = make_masks(ids, self.model.config, self.options.flex)
        with autocast(self.device):
            known: tuple[Tensor, ...] = ()
            if self.teacher is not None:
                with torch.no_grad():
                    known = (self.teacher.logits(self.teacher(ids, masks)),)
            logits = self.model.logits(self.model(ids, masks))
            loss = self.loss_of(logits, *known, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * schedule(progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def measure(self) -> dict[str, float]:
        """Bits per character on the held-out parts."""
        result = {}
        for name in EVALUATION_PARTS:
            count = self.options.rows
            part = self.data.parts[name]
            rows = evaluation_rows(part, self.model.config.context, self.device, count)
            characters = self.data.characters[name]
            result[name] = bits_per_character(self.model, rows, characters, self.options.flex, count)
        return result

    def run(self, seconds: float, save: Callable[[], None] | None) -> dict[str, Any]:
        """Trains for that long, compilation included; measures the speed, then fixes the steps."""
        if seconds < 10:
            raise ValueError(f"only {seconds:.0f} s are left for training; give more --minutes")
        begin = time.monotonic()
        steps = self.options.steps
        tokens = self.options.rows * self.model.config.context
        annealing = False
        saved = mark = begin
        step = 0
        loss = torch.zeros(())
        while True:
            elapsed = time.monotonic() - begin
            progress = elapsed / seconds if not self.options.steps else 0.0
            progress = max(progress, step / steps) if steps else progress
            if progress >= 1.0:
                break
            if not annealing and progress >= 0.6:
                annealing = True
                self.batches.change_weights(ANNEAL_MIXTURE)
            loss = self.step(progress)
            step += 1
            if step == 20:
                loss.item()
                mark = time.monotonic()
            if step == 60:
                loss.item()
                rate = 40 / (time.monotonic() - mark)
                remaining = seconds - (time.monotonic() - begin)
                steps = steps or step + max(1, int(rate * remaining))
                first = mark - begin
                self.log.write(event="speed", first_steps_s=first, tokens_per_s=rate * tokens, steps=steps)
            if step % 250 == 0:
                self.log.write(event="step", step=step, of=steps, s=elapsed, loss=loss.item())
            if save is not None and time.monotonic() - saved > 100:
                self.log.write(event="checkpoint", step=step, **self.measure())
                save()
                saved = time.monotonic()
        result = {"steps": step, "tokens": step * tokens, "s": time.monotonic() - begin}
        result |= {"train_loss": loss.item(), **self.measure()}
        return result


def load_data(options: argparse.Namespace, vocabulary: int) -> Data:
    """Builds the documents and tokenises them, or takes both from the cache in `--work`."""
    parts = build_parts(options.corpus, options.chats, options.seed, options.processes)
    folder = options.tokenizers / f"tokenizer-{vocabulary}"
    begin = time.monotonic()
    tokens = encode_parts(parts, folder / "tokenizer.json", options.work)
    counts = {name: len(part.tokens) for name, part in tokens.items()}
    print(f"tokenised in {time.monotonic() - begin:.0f} s: {counts}", flush=True)
    return Data(tokens, {n: sum(map(len, d)) for n, d in parts.items()}, folder)


def build_model(config: ModelConfig, options: argparse.Namespace) -> Gemma3:
    """A fresh model on the device, the same for the same seed."""
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    np.random.seed(options.seed)
    return Gemma3(config).to(options.device)


def run_sweep(options: argparse.Namespace, log: Log) -> None:
    """Trains every shape equally long and prints them by held-out bits per character."""
    names = options.configs or list(MAIN)
    begin = time.monotonic()
    results: list[dict[str, Any]] = []
    vocabularies = {n: MAIN[n].vocabulary for n in names}
    data = {v: load_data(options, v) for v in sorted(set(vocabularies.values()))}
    left = options.minutes * 60 - (time.monotonic() - begin)
    for position, name in enumerate(names):
        config = tiny_config(MAIN[name].vocabulary) if options.tiny else MAIN[name]
        seconds = left / len(names) - 4
        torch._dynamo.reset()
        model = build_model(config, options)
        trainer = Trainer(model, data[config.vocabulary], options, log, None)
        result = {"config": name, "parameters": config.parameters(), **trainer.run(seconds, None)}
        log.write(event="sweep", **result)
        results.append(result)
        results.sort(key=lambda r: r["held_out"])
        write_json(options.work / "best.json", results[0])
        write_json(options.out / "sweep.json", results)
        print(f"{position + 1} of {len(names)} done", flush=True)
    print(f"{'shape':22} {'weights':>10} {'tokens':>12} {'held-out':>9} {'chats':>9}  (bits per character)")
    for r in results:
        row = f"{r['config']:22} {r['parameters']:>10} {r['tokens']:>12}"
        print(f"{row} {r['held_out']:>9.4f} {r['held_out_chats']:>9.4f}")


def chosen_shape(options: argparse.Namespace) -> str:
    """The shape asked for, or the sweep's best."""
    if options.config != "best":
        return options.config
    return json.loads((options.work / "best.json").read_text(encoding="utf-8"))["config"]


def saver(model: Gemma3, name: str, data: Data, options: argparse.Namespace) -> Callable[[], None]:
    """Writes the model to the work folder and its weights to the folder that is kept."""

    def save() -> None:
        save_folder(model, options.work / name, data.tokenizer_folder)
        save_folder(model, options.out / name, data.tokenizer_folder)
        bundle_small_files(options)

    return save


def bundle_small_files(options: argparse.Namespace) -> None:
    """Moves all files but weight shards under `--out` into `extras.tar.gz` (few files come back)."""
    archive = options.out / "extras.tar.gz"
    with tarfile.open(options.work / "extras.tar.gz", "w:gz") as tar:
        for path in sorted(options.work.glob("keep/*")):
            tar.add(path, arcname=path.name)
        for name in ("main", "draft"):
            for path in sorted((options.work / name).glob("*")):
                if path.suffix != ".safetensors":
                    tar.add(path, arcname=f"{name}/{path.name}")
    archive.write_bytes((options.work / "extras.tar.gz").read_bytes())
    for name in ("main", "draft"):
        for path in (options.out / name).glob("*.json"):
            path.unlink()


def run_main(options: argparse.Namespace, log: Log, seconds: float) -> None:
    """Trains the main model."""
    begin = time.monotonic()
    name = chosen_shape(options)
    config = tiny_config(MAIN[name].vocabulary) if options.tiny else MAIN[name]
    data = load_data(options, config.vocabulary)
    model = load_folder(options.resume, options.device) if options.resume else build_model(config, options)
    save = saver(model, "main", data, options)
    trainer = Trainer(model, data, options, log, None)
    result = trainer.run(seconds - (time.monotonic() - begin), save)
    save()
    log.write(event="main", config=name, parameters=config.parameters(), seed=options.seed, **result)


def run_draft(options: argparse.Namespace, log: Log, seconds: float) -> None:
    """Distils the draft from the main model."""
    begin = time.monotonic()
    main = load_folder(options.work / "main", options.device).eval().requires_grad_(False)
    data = load_data(options, main.config.vocabulary)
    torch._dynamo.reset()
    if options.compile:
        main.compile_layers()
    config = tiny_config(main.config.vocabulary)
    config = config if options.tiny else draft_config(options.draft, main.config.vocabulary)
    draft = build_model(config, options)
    trainer = Trainer(draft, data, options, log, main)
    result = trainer.run(seconds - (time.monotonic() - begin), None)
    saver(draft, "draft", data, options)()
    log.write(event="draft", config=options.draft, parameters=config.parameters(), **result)


def run_finish(options: argparse.Namespace, log: Log) -> None:
    """Samples, acceptance of the draft, comparison with transformers, and the final bundle."""
    main = load_folder(options.work / "main", options.device)
    data = load_data(options, main.config.vocabulary)
    tokenizer = Tokenizer.from_file(str(data.tokenizer_folder / "tokenizer.json"))
    keep = options.work / "keep"
    keep.mkdir(exist_ok=True)
    text, answers = sample_text(main, tokenizer, options.seed)
    (keep / "samples.txt").write_text(text, encoding="utf-8")
    print(text, flush=True)
    rows = evaluation_rows(data.parts["held_out"], main.config.context, options.device)[:128]
    if (options.work / "draft").exists():
        draft = load_folder(options.work / "draft", options.device)
        log.write(event="acceptance", text="held-out", **acceptance(main, draft, rows))
        log.write(event="acceptance", text="own answers", **acceptance(main, draft, answers))
    ids = [BOS, *rows[0, 1 : min(288, main.config.context)].tolist()]
    for name, where in (("main", keep / "main-logits.safetensors"), ("draft", None)):
        if (options.work / name).exists():
            line = check_with_transformers(options.work / name, ids, where)
            log.write(event="check", result=line)
    (keep / "log.jsonl").write_bytes(log.path.read_bytes())
    bundle_small_files(options)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("sweep", "main", "draft", "finish", "all"))
    parser.add_argument("--minutes", type=float, default=9.0, help="wall-clock budget of the command")
    parser.add_argument("--config", default="best", choices=("best", *MAIN))
    parser.add_argument("--configs", nargs="+", choices=list(MAIN), help="shapes of a sweep")
    parser.add_argument("--draft", default="h128-l4", choices=list(DRAFT))
    parser.add_argument("--corpus", type=Path, default=HERE.parents[1] / ".demo" / "corpus")
    parser.add_argument("--tokenizers", type=Path, default=HERE.parents[1] / ".demo")
    parser.add_argument("--work", type=Path, default=Path("/tmp/trine-demo"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "/tmp/trine-demo-out")))
    parser.add_argument("--resume", type=Path, help="folder of a checkpoint to start from")
    parser.add_argument("--chats", type=int, default=120_000, help="synthetic chats")
    parser.add_argument("--rows", type=int, default=64, help="sequences in a batch")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0, help="fixed number of steps, not --minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--tiny", action="store_true", help="a toy shape, to try the chain on a CPU")
    options = parser.parse_args()
    options.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.compile = options.compile and options.device.type == "cuda"
    return options


def main() -> None:
    options = parse_options()
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    log = Log(options.work / "log.jsonl")
    begin = time.monotonic()
    # The worker processes are forked before the GPU is touched.
    build_parts(options.corpus, options.chats, options.seed, options.processes)
    print(f"documents ready after {time.monotonic() - begin:.0f} s", flush=True)
    options.flex = options.compile and flex_works(options.device)
    log.write(event="start", command=options.command, device=str(options.device), flex=options.flex)
    total = options.minutes * 60
    if options.command == "sweep":
        run_sweep(options, log)
    if options.command in ("main", "all"):
        run_main(options, log, total if options.command == "main" else 0.7 * total)
    if options.command in ("draft", "all"):
        remaining = total - (time.monotonic() - begin)
        run_draft(options, log, total if options.command == "draft" else remaining - FINISH_SECONDS)
    if options.command in ("finish", "all"):
        run_finish(options, log)
    (options.out / "log.jsonl").write_bytes(log.path.read_bytes())


if __name__ == "__main__":
    main()
