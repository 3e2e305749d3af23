#!/usr/bin/env python3
"""Writes the workload file that every peer program reads; the format is in workload.md."""

import argparse
import array
import random
import struct
import sys

MAGIC = b"ASHW"
VERSION = 1
TOKEN_BITS = 17  # ids below 131,072: the size of today's vocabularies


def tokens_of(args):
    """All tokens, chain after chain. The first block of every chain is unique, so every sequence hash is."""
    if args.block_size * TOKEN_BITS < 64 and args.chains > 1 << (args.block_size * TOKEN_BITS - 1):
        sys.exit(f"make_workload: {args.chains} chains have no room for distinct first blocks of "
                 f"{args.block_size} tokens; use larger blocks or fewer chains")
    draw = random.Random(args.seed).getrandbits
    out = array.array("I")
    if out.itemsize != 4:
        out = array.array("L")
    seen = set()
    rest = args.block_size * (args.length - 1)
    for _ in range(args.chains):
        while True:
            first = tuple(draw(TOKEN_BITS) for _ in range(args.block_size))
            if first not in seen:
                break
        seen.add(first)
        out.extend(first)
        out.extend(draw(TOKEN_BITS) for _ in range(rest))
    if sys.byteorder == "big":
        out.byteswap()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=2048, help="number of chains (default %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="blocks per chain (default %(default)s)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per block (default %(default)s)")
    parser.add_argument("--pool", type=int, default=65536, help="blocks in the pool (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of the token generator (default %(default)s)")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write")
    args = parser.parse_args()

    for name in ("chains", "length", "block_size", "pool"):
        if not 0 < getattr(args, name) < 1 << 32:
            parser.error(f"--{name.replace('_', '-')} must be between 1 and 2^32 - 1, got "
                         f"{getattr(args, name)}")
    if args.pool % args.length:
        parser.error(f"--pool ({args.pool}) must be a multiple of --length ({args.length}): see workload.md")
    if args.chains * args.length < 2 * args.pool:
        parser.error(f"--chains x --length ({args.chains * args.length}) must be at least twice --pool "
                     f"({args.pool}), "
                     "else nothing is evicted")

    with open(args.output, "wb") as out:
        out.write(MAGIC)
        out.write(struct.pack("<5I", VERSION, args.block_size, args.length, args.chains, args.pool))
        out.write(tokens_of(args).tobytes())


if __name__ == "__main__":
    main()
