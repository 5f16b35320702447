"""Measures this machine and prints one table for each suite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.rows import Plan, Row
from benchmarks.store import ROOT, commit, store, table
from benchmarks.suites import (
    ablations,
    batches,
    cancel,
    diagnostics,
    dialects,
    fidelity,
    fire,
    flood,
    frontier,
    gpu,
    int8,
    int8_reduced,
    living,
    load,
    long,
    mixed,
    overhead,
    parity,
    peers,
    precision,
    precision_quality,
    products,
    quantization,
    ranks,
    replicas,
    reranking,
    roofline,
    search,
    short,
    soak,
    startup,
    structure,
    sweep,
    training_steps,
    windows,
)
from benchmarks.workbench import Workbench
from engine.config import EngineConfig
from service.benchmarks.job import cpu_name

SUITES: Mapping[str, Callable[[Workbench, Plan], Iterator[Row]]] = {
    "short": short.measure,
    "mixed": mixed.measure,
    "long": long.measure,
    "windows": windows.measure,
    "sweep": sweep.measure,
    "fire": fire.measure,
    "cancel": cancel.measure,
    "parity": parity.measure,
    "precision": precision.measure,
    "precision-quality": precision_quality.measure,
    "int8": int8.measure,
    "int8-reduced": int8_reduced.measure,
    "products": products.measure,
    "roofline": roofline.measure,
    "fidelity": fidelity.measure,
    "gpu": gpu.measure,
    "frontier": frontier.measure,
    "ablations": ablations.measure,
    "living": living.measure,
    "structure": structure.measure,
    "flood": flood.measure,
    "overhead": overhead.measure,
    "batches": batches.measure,
    "dialects": dialects.measure,
    "load": load.measure,
    "peers": peers.measure,
    "soak": soak.measure,
    "startup": startup.measure,
    "diagnostics": diagnostics.measure_suite,
    "quantization": quantization.measure,
    "ranks": ranks.measure,
    "ranks-time": ranks.measure_time,
    "replicas": replicas.measure,
    "reranking": reranking.measure,
    "search": search.measure,
    "training-steps": training_steps.measure,
}
BY_NAME_ONLY = (
    "peers",
    "soak",
    "gpu",
    "ablations",
    "quantization",
    "ranks",
    "ranks-time",
    "replicas",
    "reranking",
    "search",
)
"""They need packages that `make bench` does not install, a GPU, or about half an hour."""
RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    options = _parser().parse_args()
    plan = Plan(quick=options.quick, repeats=options.repeats, minutes=options.minutes)
    folder = options.out or (None if options.quick else RESULTS)
    on_cpu = Workbench(threads=options.threads)
    print(f"{cpu_name()}, {on_cpu.threads} threads, commit {commit()}")
    missed: list[str] = []
    usual = [name for name in SUITES if name not in BY_NAME_ONLY]
    for name in dict.fromkeys(options.suites or usual):
        bench = Workbench(threads=options.threads, device="cuda") if name == "gpu" else on_cpu
        print(f"\n{name}: {sys.modules[SUITES[name].__module__].__doc__}\n", flush=True)
        rows = list(_shown(SUITES[name](bench, plan)))
        print(table(rows), flush=True)
        missed += [f"{name}: {row.verdict}" for row in rows if row.is_met is False]
        if folder is not None:
            print(f"\nRaw figures: {store(name, rows, bench, folder)}", flush=True)
    if missed:
        print(f"\nTargets missed: {len(missed)}", *missed, sep="\n")
    return 1 if missed and options.check else 0


def _shown(rows: Iterator[Row]) -> Iterator[Row]:
    """Prints each row to a terminal as it is measured."""
    for row in rows:
        if sys.stderr.isatty():
            print(f"{row.case}: {row.measure}: {row.value:.4g}", file=sys.stderr)
        yield row


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join(SUITES)
    parser.add_argument("suites", nargs="*", metavar="SUITE", type=_suite, help=f"of {known}")
    parser.add_argument("--quick", action="store_true", help="one turn each, nothing slow")
    parser.add_argument("--repeats", type=_count, help="turns, instead of each suite's own number")
    parser.add_argument(
        "--minutes", type=float, default=30, help="length of the soak (default: 30)"
    )
    threads = EngineConfig().compute_threads
    parser.add_argument("--threads", type=_count, default=threads, help=f"default: {threads}")
    out_help = f"folder for the raw figures (default: {RESULTS.relative_to(ROOT)}; quick: none)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out_help)
    parser.add_argument("--check", action="store_true", help="fail where a target is missed")
    return parser


def _suite(name: str) -> str:
    if name not in SUITES:
        raise argparse.ArgumentTypeError(f"no suite {name!r}; the suites are {', '.join(SUITES)}")
    return name


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
