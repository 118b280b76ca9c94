#!/usr/bin/env python3
"""Measures trine and llama.cpp on one machine, alternating, and prints ratios.

    compare.py --trine target/release/trine --llama BUILD/bin --threads 2 --rounds 5 FILE.gguf...

BUILD/bin holds `llama-bench` and `llama-batched-bench`. In every round each program runs each test once, one program
right after the other, so that a noisy neighbour hits both. Printed are medians over the rounds with their extremes,
and the median of the rounds' ratios. `--json OUT` keeps every single value. Needs Python's standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

#: Tests: (name, prompt tokens, generated tokens, sequences).
SINGLE = [("prompt 512", 512, 0, 1), ("generate 128", 0, 128, 1)]
BATCHED = [("generate 32, 4 sequences", 0, 32, 4), ("generate 32, 8 sequences", 0, 32, 8)]

#: Tokens in every sequence's cache before a batched generation starts.
DEPTH = 64


def output_of(command: list[str]) -> str:
    """Standard output of a command that has to succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def trine(options: argparse.Namespace, model: str, test: tuple[str, int, int, int]) -> float:
    """Tokens per second of one run of trine."""
    _, prompt, generate, batch = test
    depth = DEPTH if batch > 1 else 0
    command = [options.trine, "bench", model, "--threads", str(options.threads), "--json", "--repeats", "1"]
    command += ["-p", str(prompt), "-n", str(generate), "--batch", str(batch), "--depth", str(depth)]
    return json.loads(output_of(command))["tests"][0]["tokens_per_second"][0]


def llama(options: argparse.Namespace, model: str, test: tuple[str, int, int, int]) -> float:
    """Tokens per second of one run of llama.cpp."""
    _, prompt, generate, batch = test
    threads = ["-t", str(options.threads)]
    if batch == 1:
        program = os.path.join(options.llama, "llama-bench")
        command = [program, "-m", model, "-p", str(prompt), "-n", str(generate), "-r", "1", "-o", "json"]
        return json.loads(output_of(command + threads))[0]["avg_ts"]
    program = os.path.join(options.llama, "llama-batched-bench")
    command = [program, "-m", model, "-c", "4096", "-npp", str(DEPTH), "-ntg", str(generate)]
    command += ["-npl", str(batch), "--output-format", "jsonl"]
    lines = [line for line in output_of(command + threads).splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["speed_tg"]


def measure(options: argparse.Namespace, model: str, test: tuple[str, int, int, int]) -> dict:
    """All rounds of one test."""
    rounds: dict[str, list[float]] = {"trine": [], "llama": []}
    for index in range(options.rounds):
        programs = [("trine", trine), ("llama", llama)]
        for name, program in programs if index % 2 == 0 else reversed(programs):
            rounds[name].append(program(options, model, test))
    return {"model": Path(model).name, "test": test[0], **rounds}


def row(result: dict) -> str:
    """One line of the table."""
    def shown(values: list[float]) -> str:
        return f"{statistics.median(values):.1f} ({min(values):.1f}..{max(values):.1f})"

    ratios = [ours / theirs for ours, theirs in zip(result["trine"], result["llama"])]
    cells = [result["model"], result["test"], shown(result["trine"]), shown(result["llama"])]
    return "| " + " | ".join([*cells, f"{statistics.median(ratios):.2f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--trine", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    print("| model | test | trine tok/s | llama.cpp tok/s | ratio |\n|---|---|---|---|---|", flush=True)
    for model in options.models:
        for test in SINGLE + BATCHED:
            results.append(measure(options, model, test))
            print(row(results[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
