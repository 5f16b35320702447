"""Runs the suites of others whose checkouts are given, and stores what became of every case.

python -m benchmarks.conformance --h1spec DIR --llhttp DIR --smuggler DIR --http11probe DIR

Each DIR is a checkout: github.com/dropseed/h1spec, nodejs/llhttp, defparam/smuggler and
MDA2AV/Http11Probe. Read what you check out before you run it: smuggler and h1spec are run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.conformance import h1spec, http11probe, llhttp, smuggler
from benchmarks.conformance.verdicts import Address, Verdict
from benchmarks.servers import our_server
from benchmarks.store import ROOT, commit

RESULTS = ROOT / "benchmarks" / "results" / "conformance.jsonl"
SUITES: Mapping[str, Callable[[Path, Address], Iterator[Verdict]]] = {
    "h1spec": h1spec.verdicts,
    "llhttp": llhttp.verdicts,
    "smuggler": smuggler.verdicts,
    "http11probe": http11probe.verdicts,
}


def main() -> int:
    options = _parser().parse_args()
    given = {suite: path for suite in SUITES if (path := getattr(options, suite)) is not None}
    if not given:
        sys.exit("give the checkout of at least one suite; --help names them")
    lines: list[str] = []
    failed = 0
    measured = commit()
    with our_server(1) as served:
        address = Address(served.target.host, served.target.port)
        for suite, checkout in given.items():
            found = list(SUITES[suite](checkout, address))
            bad = [verdict for verdict in found if not verdict.passed]
            failed += len(bad)
            print(f"{suite}: {len(found)} cases, {len(bad)} failed", flush=True)
            for verdict in bad:
                print(f"  {verdict.case}: wanted {verdict.wanted}, found {verdict.found}")
            about = {"suite": suite, "of": _revision(checkout), "commit": measured}
            lines += [json.dumps({**about, **asdict(verdict)}) for verdict in found]
    options.out.write_text("".join(f"{line}\n" for line in lines))
    print(f"\nRaw results: {options.out}")
    return 1 if failed and options.check else 0


def _revision(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for suite in SUITES:
        parser.add_argument(f"--{suite}", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="fail where a case fails")
    return parser


if __name__ == "__main__":
    sys.exit(main())
