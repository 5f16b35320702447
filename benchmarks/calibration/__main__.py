r"""Reads real texts with every instrument that states errors, and compares with dense truth.

python -m benchmarks.calibration                 200 texts, about 50 minutes of one core
python -m benchmarks.calibration --texts 20 --budget 300 --part development --out /tmp/some.jsonl

After `stationary` was mended, for faults in texts of the first run, it was read on further texts:

python -m benchmarks.calibration --skip 200 --only stationary \
    --out benchmarks/results/calibration-again.jsonl

`head_kind` came later, and was read on others again:

python -m benchmarks.calibration --skip 600 --only head_kind \
    --out benchmarks/results/calibration-kinds.jsonl

Each text and attention is one line of the file of raw results. A run that ends early, at the end of
its budget or otherwise, continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, get_args

import torch

from benchmarks.calibration.cases import LENGTHS, MODELS, Part, Readers, Text, texts
from benchmarks.calibration.scores import HEAD, read_raw, score_heads, table_rows
from benchmarks.store import ROOT, commit

RESULTS = ROOT / "benchmarks" / "results" / "calibration.jsonl"
LEAST = 99.0


def main() -> int:
    options = _parser().parse_args()
    torch.set_num_threads(1)
    ends_at = perf_counter() + options.budget
    raw = read_raw(options.out)
    measured = commit()
    done = {(entry["text"], entry["attention"]) for entry in raw}
    readers = Readers.load()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a", encoding="utf-8") as out:
        chosen = islice(texts(options.part), options.skip, options.skip + options.texts)
        for index, text in enumerate(chosen, start=options.skip):
            if index % options.processes != options.process or text.tokens > options.longest:
                continue
            for entry in _entries(readers, text, index, done, options.only, measured):
                out.write(json.dumps(entry, separators=(",", ":")) + "\n")
                out.flush()
                raw.append(entry)
                print(f"{len(raw)}: {entry['text']}, {entry['cpu_s']} s", file=sys.stderr)
            if perf_counter() > ends_at:
                print(f"the budget of {options.budget:g} s is spent; run it again to go on")
                break
    rows = list(table_rows(raw))
    print(*(" | ".join(cells) for cells in (HEAD, *rows)), sep="\n")
    missed = [row for row in rows if float(row[HEAD.index("within 3, %")]) < LEAST]
    print(f"\n{len(rows)} rows, {len(missed)} below {LEAST} % within 3 stated errors")
    print(*(" | ".join(cells) for cells in missed), sep="\n")
    return 1 if missed and options.check else 0


def _entries(
    readers: Readers,
    text: Text,
    index: int,
    done: set[tuple[str, str]],
    only: list[str] | None,
    measured: str,
) -> Iterator[dict[str, Any]]:
    for attention in MODELS:
        if (text.name, attention) in done:
            continue
        started_at = process_time()
        view = readers.view(text, attention)
        if view is None:
            print(f"{text.name} has fewer than {text.tokens} tokens", file=sys.stderr)
            continue
        with torch.no_grad():
            scores = score_heads(view, index, only)
        yield {
            "text": text.name,
            "tokens": text.tokens,
            "layer": text.layer,
            "attention": attention,
            "block": view.block_size if view.has_blocks else None,
            "commit": measured,
            "cpu_s": round(process_time() - started_at, 2),
            "scores": {name: score.to_json() for name, score in scores.items()},
        }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0, help="texts to pass over first")
    parser.add_argument("--budget", type=float, default=3_600, help="seconds (default: 3600)")
    parser.add_argument("--process", type=int, default=0, help="which of several, from 0")
    parser.add_argument("--processes", type=int, default=1, help="that share the texts and --out")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="leave out longer texts")
    parser.add_argument("--part", choices=get_args(Part), default="fresh")
    parser.add_argument("--only", nargs="+", metavar="INSTRUMENT", help="not all that state errors")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true", help="fail where a target is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
