"""How long ranks take to exchange a layer's states, by their number and the size of the states.

    python -m benchmarks.ranks.exchanges

starts 2 to 8 processes on this machine, which exchange states of several sizes over gloo as ranks
do, and writes every time to benchmarks/results/ranks/exchanges.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.store import ROOT, commit, machine
from benchmarks.texts import RealText
from engine.config import EngineConfig
from engine.model.embedding_model import load_model
from engine.ranks.group import Group
from engine.ranks.local import places_here
from engine.ranks.place import RankPlace

RANKS = (2, 3, 4, 6, 8)
VALUES = (1_024, 12_672, 49_920, 199_680, 798_720)
"""Numbers in a rank's part. 12,672 are the states of the default model: 12 heads of 32."""
REPEATS = 60
_WARM = 10
RESULTS = ROOT / "benchmarks" / "results" / "ranks" / "exchanges.json"


@dataclass(frozen=True)
class Exchanges:
    """Exchanges of one size between so many ranks, as the first rank saw them."""

    ranks: int
    bytes_each: int
    """Bytes of one rank's part. Each rank sends them to every other, on a ring."""
    wire_bytes: float
    """Bytes that the first rank wrote to its connections for one exchange, by the kernel's count.
    """
    seconds: list[float]


def main() -> int:
    found = [one for ranks in RANKS for one in _measure(ranks)]
    content = {
        "commit": commit(),
        "machine": machine(),
        "torch": torch.__version__,
        "tokens_per_second": _tokens_per_second(),
        "rows": [asdict(one) for one in found],
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(RESULTS)
    return 0


def _tokens_per_second() -> float:
    """How fast one core tokenises real text."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = load_model(config=EngineConfig(device="cpu", num_threads=1)).tokenizer
    text = RealText(tokenizer).speeches(400_000)
    taken = []
    for _ in range(3):
        started_at = perf_counter()
        (encoded,) = tokenizer.encode_batch([text])
        taken.append(encoded.num_tokens / (perf_counter() - started_at))
    return median(taken)


def _measure(num_ranks: int) -> list[Exchanges]:
    command = [sys.executable, "-m", "benchmarks.ranks.exchanges", "rank"]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **place.as_environment()}, stdout=subprocess.PIPE
        )
        for place in places_here(num_ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "a rank failed"
    return [Exchanges(**row) for row in json.loads(outputs[0])]


def _run_rank() -> None:
    torch.set_num_threads(1)
    place = RankPlace.from_environment(os.environ)
    assert place is not None, "it is in the environment"
    group = Group(place.open_store(60), 0, place.rank, place.num_ranks)
    found = [_exchange(group, values) for values in VALUES]
    if place.rank == 0:
        print(json.dumps([asdict(one) for one in found]))
    _wait_for(group, torch.zeros(1))  # nobody leaves while another still exchanges


def _exchange(group: Group, values: int) -> Exchanges:
    part = torch.randn(values)
    for _ in range(_WARM):
        _wait_for(group, part)
    written = _bytes_written()
    seconds = []
    for _ in range(REPEATS):
        started_at = perf_counter()
        _wait_for(group, part)
        seconds.append(perf_counter() - started_at)
    wire_bytes = (_bytes_written() - written) / REPEATS
    return Exchanges(group.num_ranks, part.numel() * part.element_size(), wire_bytes, seconds)


def _wait_for(group: Group, part: Tensor) -> None:
    pending = group.all_gather(part)
    while pending.poll() is None:
        os.sched_yield()


def _bytes_written() -> int:
    """What this process has written so far, to connections too."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        _run_rank()
    else:
        argparse.ArgumentParser(description=__doc__).parse_args()
        sys.exit(main())
