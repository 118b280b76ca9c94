#!/usr/bin/env python3
"""Writes a GGUF file with random weights in the true shapes of a published Gemma.

    make_gguf.py --model 1b --type Q4_0 --out gemma-3-1b-random-Q4_0.gguf
    make_gguf.py --model 4-26b-a4b --type Q4_0 --out gemma-4-26b-a4b-random-Q4_0.gguf
    make_gguf.py --list

For measurements of speed and memory: names, shapes, metadata and formats are those of published files, so that trine and
llama.cpp load it; the text that it writes means nothing. The vocabulary has Gemma's size, its special ids and its
bytes, and made-up pieces.

Types are mixtures as llama-quantize makes them. Q4_K_M has Q6_K for the values and for the last matrix of the
feed-forward in half of the layers. The embedding table is Q6_K where others have 4 bits (`--embedding` says otherwise).
Rows that are no whole number of blocks get the format that llama-quantize falls back to. Vectors are F32; Gemma 3n's
matrices of AltUp, LAuReL and the projection of per-layer inputs stay F16 or F32, and so do the routers of Gemma 4.

Hidden states stay finite at any depth: all matrices have zero mean and the same deviation, norms have factors near 1,
and the norm after each branch bounds what a layer adds.

Each format has one pool of random blocks. A tensor is written as the pool over and over, from a place of its own. The
pool has a prime number of blocks, so that no two rows of a matrix are the same. The bytes depend on the options only.
The memory used is that of the pools, a few MB each. Needs Python 3.9 or later and numpy.
"""

from __future__ import annotations

import argparse
import os
from types import ModuleType

import gemma3
import gemma4
from container import FILE_TYPES, Tensors, write

FAMILIES = (gemma3, gemma4)
MODELS = [name for family in FAMILIES for name in family.MODELS]


def family_of(name: str) -> ModuleType:
    return next(family for family in FAMILIES if name in family.MODELS)


def tensors_of(name: str, kind: str, embedding: str | None) -> Tensors:
    family = family_of(name)
    return family.tensors(family.MODELS[name], kind, embedding or embedding_of(kind))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--type", choices=FILE_TYPES)
    parser.add_argument("--out", help="the file that is written")
    parser.add_argument("--embedding", choices=["F16", "Q4_0", "Q8_0", "Q6_K"], help="format of the embedding table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the sizes of all models and types, and end")
    options = parser.parse_args()
    if not options.list and None in (options.model, options.type, options.out):
        parser.error("--model, --type and --out are needed")
    return options


def embedding_of(kind: str) -> str:
    """The format of the embedding table in a file of a type."""
    return kind if kind in ("F16", "Q8_0") else "Q6_K"


def main() -> None:
    options = arguments()
    if options.list:
        for name in MODELS:
            sizes = [(kind, tensors_of(name, kind, None).bytes / 1e9) for kind in FILE_TYPES]
            print(f"{name:19}", "  ".join(f"{kind} {size:6.2f} GB" for kind, size in sizes))
        return
    tensors = tensors_of(options.model, options.type, options.embedding)
    family = family_of(options.model)
    entries = family.metadata(family.MODELS[options.model], options.type)
    size = write(options.out, tensors, entries, options.seed)
    print(f"{os.path.basename(options.out)}: {size / 1e9:.3f} GB, {len(tensors.all)} tensors")


if __name__ == "__main__":
    main()
