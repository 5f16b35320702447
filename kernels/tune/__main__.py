"""python -m kernels.tune: measures tile sizes on this GPU and writes the fastest to tiles.json.

Candidates are built first, all processors at work; those that a GPU may not run are left out.
All times are stored beside the benchmarks' results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernels.attention.gpu import tiles
from kernels.bench.measure import Clock
from kernels.bench.report import ROOT, facts_of
from kernels.tune.choices import Numbers, choices
from kernels.tune.decide import Timed, decide

DTYPES = ("bfloat16", "float16", "float32")
TIMES = ROOT / "benchmarks" / "results" / "kernels" / "tiles.json"


def main() -> None:
    options = parse()
    if not torch.cuda.is_available():
        sys.exit("kernels.tune measures a GPU, and there is none here")
    device = torch.device("cuda")
    family = tiles.family_of(device)
    if family is None:
        known = ", ".join(tiles.FAMILIES.values())
        sys.exit(f"{torch.cuda.get_device_name()} is of no known family ({known})")
    tune(options, device, family)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description=__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16"])
    parser.add_argument("--only", default="", help="choices whose names this pattern is found in")
    parser.add_argument("--budget-s", type=float, default=300, help="start none after this time")
    parser.add_argument("--seconds-each", type=float, default=0.02, help="time for a candidate")
    parser.add_argument("--out", type=Path, default=tiles.TABLE)
    parser.add_argument("--times", type=Path, default=TIMES)
    return parser.parse_args()


def tune(options: argparse.Namespace, device: torch.device, family: str) -> None:
    # Here, since it needs Triton, without which the message above is all there is.
    from kernels.tune.builds import FAMILY, building_processes, usable

    deadline = time.monotonic() + options.budget_s
    clock = Clock(device, options.seconds_each)
    chosen = tiles.table().setdefault(family, {})
    facts, timed = facts_of(device), dict[str, list[Timed]]()
    with building_processes() as processes:
        for name in options.dtypes:
            dtype = getattr(torch, name)
            for choice in choices(device, dtype):
                if not re.search(options.only, choice.purpose) or time.monotonic() > deadline:
                    continue
                candidates: Sequence[Numbers] = choice.candidates
                if family == FAMILY:
                    candidates = usable(choice, dtype, processes)
                timed[choice.purpose] = decide(choice, candidates, chosen, clock.seconds)
                write(options.out, family, chosen, facts)
                write_times(options.times, facts, timed)


def write(path: Path, family: str, chosen: Mapping[str, Numbers], facts: Mapping[str, Any]) -> None:
    """Replaces this family's lines and leaves those of others."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    measured_on = content.get("measured_on", {}) | {family: facts}
    lines = content.get("tiles", {}) | {family: chosen}
    text = json.dumps({"measured_on": measured_on, "tiles": lines}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def write_times(path: Path, facts: Mapping[str, Any], timed: Mapping[str, list[Timed]]) -> None:
    choices = {purpose: [found._asdict() for found in times] for purpose, times in timed.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "choices": choices}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
