#!/usr/bin/env python3
"""Measures trine and llama.cpp on one machine's processor, alternating, and prints ratios.

    compare.py --trine target/release/trine --llama BUILD/bin --threads 2 --rounds 5 FILE.gguf...

BUILD/bin holds `llama-bench` and `llama-batched-bench`. In every round each program runs each test once, one program
right after the other, so that a noisy neighbour hits both; `--seconds` begins no round that would last longer. Printed
are medians over the rounds with their extremes, the median of the rounds' ratios, and what trine read and computed
meanwhile: gigabytes and 10^9 operations a second, by the model's cost. Before them stand the processor's name and the
rate of streaming reads in the same run. `--json OUT` keeps every single value. Needs Python's standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

#: A test: (name, prompt tokens, generated tokens, sequences).
Test = tuple[str, int, int, int]

#: Tokens in every sequence's cache before a batched generation starts.
DEPTH = 64


def tests_of(generate: int) -> list[Test]:
    """A prompt, and one, four and eight sequences that generate, the last two a fourth of the tokens each."""
    batched = [(f"generate {generate // 4}, {batch} sequences", 0, generate // 4, batch) for batch in (4, 8)]
    return [("prompt 512", 512, 0, 1), (f"generate {generate}", 0, generate, 1), *batched]


def output_of(command: list[str]) -> str:
    """Standard output of a command that has to succeed."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def trine(options: argparse.Namespace, model: str, test: Test) -> dict[str, float]:
    """One run of trine: tokens per second, what it read and computed, and the rate of streaming reads."""
    _, prompt, generate, batch = test
    depth = DEPTH if batch > 1 else 0
    command = [options.trine, "bench", model, "--device", "cpu", "--threads", str(options.threads), "--json"]
    command += ["--repeats", "1", "-p", str(prompt), "-n", str(generate), "--batch", str(batch), "--depth", str(depth)]
    report = json.loads(output_of(command))
    found = report["tests"][0]
    return {
        "trine": found["tokens_per_second"][0],
        "bytes": found["bytes_per_second"],
        "operations": found["operations_per_second"],
        "reads": statistics.median(report["read_bandwidth"]),
    }


def llama(options: argparse.Namespace, model: str, test: Test) -> dict[str, float]:
    """One run of llama.cpp: tokens per second."""
    _, prompt, generate, batch = test
    threads = ["-t", str(options.threads)]
    if batch == 1:
        program = os.path.join(options.llama, "llama-bench")
        command = [program, "-m", model, "-p", str(prompt), "-n", str(generate), "-r", "1", "-o", "json"]
        return {"llama": json.loads(output_of(command + threads))[0]["avg_ts"]}
    program = os.path.join(options.llama, "llama-batched-bench")
    command = [program, "-m", model, "-c", "4096", "-npp", str(DEPTH), "-ntg", str(generate)]
    command += ["-npl", str(batch), "--output-format", "jsonl"]
    lines = [line for line in output_of(command + threads).splitlines() if line.startswith("{")]
    return {"llama": json.loads(lines[-1])["speed_tg"]}


def processor() -> str:
    """The name of the processor, and the number of its threads that may be used."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = names[0].split(":")[1].strip() if names else platform.processor()
    return f"{name}, {len(os.sched_getaffinity(0))} threads"


def row(model: str, test: str, rounds: list[dict[str, float]]) -> str:
    """One line of the table."""

    def median(name: str) -> float:
        return statistics.median(found[name] for found in rounds)

    def shown(name: str) -> str:
        values = [found[name] for found in rounds]
        return f"{median(name):.1f} ({min(values):.1f}..{max(values):.1f})"

    ratio = statistics.median(found["trine"] / found["llama"] for found in rounds)
    cells = [model, test, shown("trine"), shown("llama"), f"{ratio:.2f}"]
    return "| " + " | ".join([*cells, *(f"{median(name) / 1e9:.1f}" for name in ("bytes", "operations"))]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--trine", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--generate", type=int, default=128, help="tokens that one sequence generates")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tests = [(model, test) for model in options.models for test in tests_of(options.generate)]
    results: list[list[dict[str, float]]] = [[] for _ in tests]
    begin, longest = time.monotonic(), 0.0
    for index in range(options.rounds):
        start = time.monotonic()
        if start + longest > begin + options.seconds:
            break
        for rounds, (model, test) in zip(results, tests):
            programs = (trine, llama) if index % 2 == 0 else (llama, trine)
            rounds.append({name: value for run in programs for name, value in run(options, model, test).items()})
        longest = max(longest, time.monotonic() - start)
    reads = statistics.median(found["reads"] for rounds in results for found in rounds) / 1e9
    print(f"{processor()}; {options.threads} at work; streaming reads {reads:.1f} GB/s; {len(results[0])} rounds\n")
    print("| model | test | trine tok/s | llama.cpp tok/s | ratio | trine GB/s | Gop/s |\n|---|---|---|---|---|---|---|")
    named = [(Path(model).name, test[0], rounds) for (model, test), rounds in zip(tests, results)]
    print("\n".join(row(*found) for found in named))
    if options.json:
        kept = [{"model": model, "test": test, "rounds": rounds} for model, test, rounds in named]
        options.json.write_text(json.dumps({"processor": processor(), "tests": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
