#!/usr/bin/env python3
"""Compares two files of logits position by position.

    compare.py EXPECTED.safetensors FOUND.safetensors [--tolerance 5e-4] [--relative] [--worst 10]
    compare.py GOLDEN.safetensors --ids ids.json

A file is what `trine logits` writes, or a `goldens.safetensors` of tests/goldens: it holds a tensor `logits` of shape
[positions, vocabulary]. The first form prints a line for each position:

    difference  the largest |expected - found| of a token, with `--relative` divided by the largest |expected| of the file
    at          that token
    divergence  the KL divergence of the found distribution from the expected one, in nats
    most likely the expected token, and the found one if it is another

and then the first position beyond the tolerance. `--worst N` prints only the N positions with the largest differences.
The second form writes the token ids of a golden as `trine logits` takes them.

Exits with 0 if all differences are within the tolerance, with 1 if one is not, with 2 for files that cannot be compared.
Needs Python 3.9 or later and numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import numpy as np

#: The types of tensors that are read. BF16 is the upper half of F32.
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


class Unreadable(Exception):
    """A file that does not hold what is asked for."""


def tensor(path: str, name: str) -> tuple[np.ndarray, str]:
    """Maps a tensor of a safetensors file. Returns it with its type."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise Unreadable(f"{path} is not a safetensors file, or is cut off")
        try:
            entry = json.loads(file.read(length)).get(name)
        except (ValueError, AttributeError) as error:
            raise Unreadable(f"{path} is not a safetensors file: {error}") from error
    if entry is None:
        raise Unreadable(f"{path} holds no tensor `{name}`")
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{path}: the header does not describe `{name}`") from error
    if kind not in TYPES:
        raise Unreadable(f"{path}: `{name}` is {kind}; {', '.join(TYPES)} are read")
    dtype = np.dtype(TYPES[kind])
    if end - begin != dtype.itemsize * int(np.prod(shape)) or 8 + length + end > size:
        raise Unreadable(f"{path}: `{name}` of shape {list(shape)} does not fit into the file")
    return np.memmap(path, dtype, "r", 8 + length + begin, shape), kind


class Logits:
    """The logits of a file, one position at a time: a vocabulary is large."""

    def __init__(self, path: str):
        self.path = path
        self.values, self.kind = tensor(path, "logits")
        if self.values.ndim != 2 or 0 in self.values.shape:
            shape = list(self.values.shape)
            raise Unreadable(f"{path}: `logits` has shape {shape}, not [positions, vocabulary]")

    def row(self, position: int) -> np.ndarray:
        """The logits of one position as float64."""
        row = self.values[position]
        if self.kind == "BF16":
            row = (row.astype(np.uint32) << 16).view(np.float32)
        return row.astype(np.float64)


def log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def compare(expected: np.ndarray, found: np.ndarray) -> tuple[float, int, float, int, int]:
    """Returns the largest difference, its token, the divergence, and both most likely tokens."""
    differences = np.abs(expected - found)
    # What is not a number differs from everything.
    differences[~np.isfinite(differences)] = np.inf
    at = int(differences.argmax())
    divergence = float("nan")
    if np.isfinite(differences[at]):
        p, q = log_softmax(expected), log_softmax(found)
        divergence = float((np.exp(p) * (p - q)).sum())
    return float(differences[at]), at, divergence, int(expected.argmax()), int(found.argmax())


def write_ids(path: str, to: str) -> int:
    ids, _ = tensor(path, "input_ids")
    with open(to, "w", encoding="utf-8") as file:
        json.dump(ids.tolist(), file)
    print(f"{ids.size} ids in {to}")
    return 0


def report(options: argparse.Namespace) -> int:
    expected, found = Logits(options.expected), Logits(options.found)
    if expected.values.shape != found.values.shape:
        shapes = [list(file.values.shape) for file in (expected, found)]
        raise Unreadable(f"{options.expected} has shape {shapes[0]}, {options.found} {shapes[1]}: give both the same ids")
    positions = range(expected.values.shape[0])
    rows = [compare(expected.row(position), found.row(position)) for position in positions]
    scale = 1.0
    if options.relative:
        scale = max(float(np.abs(expected.row(position)).max()) for position in positions)
        if not 0.0 < scale < float("inf"):
            raise Unreadable(f"{options.expected}: the largest logit is {scale}")
    shown = list(positions)
    if options.worst is not None:
        shown = sorted(sorted(shown, key=lambda position: -rows[position][0])[: options.worst])
    print(f"{'position':>8} {'difference':>11} {'at':>7} {'divergence':>11}  most likely")
    for position in shown:
        difference, at, divergence, wanted, given = rows[position]
        likely = f"{wanted}" if wanted == given else f"{wanted}, found {given}"
        print(f"{position:>8} {difference / scale:>11.3g} {at:>7} {divergence:>11.3g}  {likely}")
    differences = [row[0] / scale for row in rows]
    beyond = [position for position in positions if not differences[position] <= options.tolerance]
    agree = sum(row[3] == row[4] for row in rows)
    mean = float(np.mean([row[2] for row in rows]))
    print(f"\nlargest difference {max(differences):.3g}, mean divergence {mean:.3g}")
    print(f"the most likely token agrees at {agree} of {len(rows)} positions")
    if not beyond:
        print(f"all within {options.tolerance:g}")
        return 0
    print(f"{len(beyond)} of {len(rows)} positions beyond {options.tolerance:g}, the first is {beyond[0]}")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expected", help="the logits that are right")
    parser.add_argument("found", nargs="?", help="the logits in question")
    parser.add_argument("--tolerance", type=float, default=5e-4, help="largest difference allowed (default: 5e-4)")
    parser.add_argument("--relative", action="store_true", help="divide differences by the largest expected logit")
    parser.add_argument("--worst", type=int, metavar="N", help="print only the N worst positions")
    parser.add_argument("--ids", metavar="FILE.json", help="write the token ids of a golden, and compare nothing")
    options = parser.parse_args()
    if (options.found is None) == (options.ids is None):
        parser.error("give a second file to compare with, or --ids")
    try:
        return write_ids(options.expected, options.ids) if options.ids else report(options)
    except (Unreadable, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
