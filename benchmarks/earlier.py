"""How long a diagnosis, linked passages or short texts take compared with an earlier commit.

python -m benchmarks.earlier 306b21c --layers 0 3 --tokens 1200 --repeats 2
python -m benchmarks.earlier a896794 --model default --layers 0 --out FILE
python -m benchmarks.earlier 5f71db7f --what linked --model default --tokens 8192 --repeats 15
python -m benchmarks.earlier 372567c1 --what short --model default --tokens 8192 --repeats 15

Both commits take turns, each in a process of its own, with the same packages and the same text. The
earlier one is checked out beside this one for as long as it takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

from benchmarks.store import ROOT, commit, machine
from benchmarks.workbench import PUBLISHED_MODEL
from engine.model.embedding_model import load_model

_WORKER = """
import json, sys, time
from engine.engine import Engine
from engine.types import ChunkPlan

asked = json.loads(sys.stdin.readline())
engine = Engine.load(asked["model"], dtype=asked["dtype"])

def diagnosis():
    found = engine.diagnose(asked["text"], layers=asked["layers"], mode="auto")
    return {one.instrument: one.compute_s for one in found.instruments}

def linked():
    engine.embed_chunks(asked["text"], chunks=ChunkPlan(tokens=256, context="linked"))
    return {}

def short():
    words = asked["text"].split()
    engine.embed([" ".join(words[at : at + 24]) for at in range(0, len(words), 24)])
    return {}

print("ready", flush=True)
for _ in sys.stdin:
    started_at = time.perf_counter()
    parts = globals()[asked["what"]]()
    print(json.dumps({"s": time.perf_counter() - started_at, "parts": parts}), flush=True)
"""

_WHAT = ("diagnosis", "linked", "short")
"""Functions of the worker."""


_RESULTS = ROOT / "benchmarks" / "results" / "comparisons"


def main() -> int:
    options = _parser().parse_args()
    tokenizer = load_model(options.model, attention="softmax").tokenizer
    whole = "\n\n".join(topics.values())[: 8 * options.tokens]
    encoded = tokenizer.encode_batch([whole], with_offsets=True)[0]
    text = whole[: int(encoded.offsets[options.tokens - encoded.num_suffix - 1, 1])]
    asked = {
        "what": options.what,
        "model": options.model,
        "dtype": options.dtype,
        "text": text,
        "layers": options.layers,
    }
    taken: dict[str, list[dict[str, object]]] = {"now": [], "earlier": []}
    with (
        _checked_out(options.commit) as folder,
        _worker(ROOT, asked) as now,
        _worker(folder, asked) as earlier,
    ):
        for _ in range(options.repeats):
            for name, worker in (("now", now), ("earlier", earlier)):
                taken[name].append(_turn(worker))
                print(name, taken[name][-1]["s"], flush=True)
    ratios = [
        float(str(old["s"])) / float(str(new["s"]))
        for new, old in zip(taken["now"], taken["earlier"], strict=True)
    ]
    result = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "earlier": options.commit,
        "machine": machine(),
        "what": options.what,
        "model": options.model,
        "dtype": options.dtype,
        "tokens": options.tokens,
        "layers": options.layers,
        "ratio": median(ratios),
        "ratios": ratios,
        "turns": taken,
    }
    out: Path = options.out or _RESULTS / f"{options.what}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


@contextmanager
def _checked_out(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(folder), name], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


@contextmanager
def _worker(folder: Path, asked: dict[str, object]) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", _WORKER],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(asked), file=process.stdin, flush=True)
        assert process.stdout.readline().strip() == "ready"
        yield process
        process.stdin.close()


def _turn(worker: subprocess.Popen[str]) -> dict[str, object]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print("go", file=worker.stdin, flush=True)
    found: dict[str, object] = json.loads(worker.stdout.readline())
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.earlier", description=__doc__)
    parser.add_argument("commit", help="the earlier one")
    parser.add_argument("--what", choices=_WHAT, default=_WHAT[0])
    parser.add_argument("--model", default=PUBLISHED_MODEL)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=1_200)
    parser.add_argument("--layers", type=int, nargs="+", help="of a diagnosis; default: all")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help=f"default: {_RESULTS}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
