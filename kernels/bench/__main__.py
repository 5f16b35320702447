"""python -m kernels.bench: measures, prints the worst first, stores JSON and pictures."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from kernels.bench.check import run_checks
from kernels.bench.clocks import clocks
from kernels.bench.floors import measure_ceiling
from kernels.bench.measure import Clock
from kernels.bench.report import ROOT, Record, draw, facts_of, first_line, table
from kernels.bench.runs import Bench
from kernels.bench.suites import SUITES


def main() -> None:
    options = parse()
    started_at = time.monotonic()
    device = torch.device(options.device)
    failed = run_checks(device) if options.check else []
    if not options.check_only:
        # Also after a failed check: the others are right, and a GPU may be there for minutes only.
        failed = measure(options, device, failed, deadline=started_at + options.budget_s)
    if failed:
        sys.exit("\n".join(["failed:", *failed]))


def parse() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("suites", nargs="*", default=[*SUITES], help=f"of {', '.join(SUITES)}")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if on_gpu else "float32")
    parser.add_argument("--check", action="store_true", help="first check the answers")
    parser.add_argument("--check-only", action="store_true", help="check only, measure nothing")
    parser.add_argument(
        "--budget-s", type=float, default=480, help="start no suite after this time"
    )
    parser.add_argument("--seconds-each", type=float, default=0.3, help="time for one measurement")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernels")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    options.check = options.check or options.check_only
    return options


def measure(
    options: argparse.Namespace, device: torch.device, failed: list[str], *, deadline: float
) -> list[str]:
    """Returns what has failed, including the checks before."""
    clock = Clock(device, options.seconds_each)
    dtype = getattr(torch, options.dtype)
    ceiling = measure_ceiling(clock, dtype)
    found = clocks(device)
    best = {
        "copy_bytes_per_s": ceiling.bytes_per_s,
        "product_flops_per_s": ceiling.flops_per_s,
        "exponentials_per_s": ceiling.exponentials_per_s,
        "clocks": None if found is None else found._asdict(),
    }
    record = Record(
        options.out / f"{device.type}.json", {**facts_of(device), **best}, failed=failed
    )
    print(f"{record.facts['device']}: copies {ceiling.bytes_per_s / 1e12:.3g} TB/s,", end=" ")
    print(f"multiplies {ceiling.flops_per_s / 1e12:.3g} TFLOP/s in {options.dtype}")
    bench = Bench(clock, ceiling, dtype, large=device.type == "cuda")
    with suppress(DeviceLost):
        for name in options.suites:
            run_suite(name, bench, record, deadline)
    record.save()
    print(table(record.rows))
    pictures = draw(record.rows, options.out, str(record.facts["device"]))
    print(f"written: {', '.join(map(str, [record.path, *pictures]))}")
    if record.skipped:
        print(f"no time left for: {', '.join(record.skipped)}")
    return record.failed


class DeviceLost(Exception):
    """A call has failed, and all that follow it would."""


def answers(device: torch.device) -> bool:
    try:
        return bool(torch.ones((), device=device).item())
    except RuntimeError:
        return False


def run_suite(name: str, bench: Bench, record: Record, deadline: float) -> None:
    rows = SUITES[name](bench)
    while True:
        if time.monotonic() > deadline:
            record.skipped.append(name)
            return
        try:
            row = next(rows, None)
        except Exception as error:  # outside a measurement; the other suites go on
            record.failed.append(f"{name}: {first_line(error)}")
            return
        if row is None:
            return
        record.add(row)
        print(table([row]).splitlines()[1], flush=True)
        if row.seconds is None and not answers(bench.device):
            # After an illegal address nothing else can be measured in this process.
            record.failed.append(f"{name}: {row.name} has left the device without answers")
            raise DeviceLost


if __name__ == "__main__":
    main()
