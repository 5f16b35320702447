"""Starts a server and throws at it what nobody would send: python -m tests.fuzz --help

Exits with 1 if a request over HTTP found what schemathesis.toml speaks of, if a call over gRPC
ended with a status that blames the server, or if the server did not come through it all.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.fuzz.calls import fuzz, tally
from tests.service.outside import free_port

_HERE = Path(__file__).parent
_START_TIMEOUT_S = 120
_KEY = "a-key-of-those-who-fuzz"
_SETTINGS = {
    # So that a made-up benchmark of 100,000 tokens does not outlast the afternoon.
    "LLN_ENGINE__MAX_TEXT_TOKENS": "2048",
    "LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS": "2048",
    # So that what openapi.json says of keys is tried as well.
    "LLN_API_KEYS": _KEY,
    "LLN_METRICS_NEED_KEY": "true",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--http-examples", type=int, default=300, help="at most, an operation")
    parser.add_argument("--grpc-cases", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryFile() as log:
        with _server(log) as (http_url, grpc_address):
            sound = _fuzz_grpc(grpc_address, chosen.grpc_cases, chosen.seed)
            sound &= _fuzz_http(http_url, chosen.http_examples, chosen.seed)
            sound &= _is_well(http_url)
        sound &= _log_is_clean(log)
    return 0 if sound else 1


def _fuzz_grpc(address: str, num_cases: int, seed: int) -> bool:
    results = list(fuzz(address, num_cases, seed, key=_KEY))
    print(tally(results), flush=True)
    failures = [result for result in results if result.is_failure]
    for failure in failures[:20]:
        sent = ", ".join(request[:200].hex() for request in failure.requests)
        print(f"FAILED {failure.method}: {failure.code.name} {failure.details} after {sent}")
    print(f"{len(results)} calls over gRPC, {len(failures)} failures", flush=True)
    return not failures


def _fuzz_http(url: str, max_examples: int, seed: int) -> bool:
    command = [sys.executable, "-m", "schemathesis.cli"]
    command += ["--config-file", str(_HERE / "schemathesis.toml")]
    command += ["run", f"{url}/openapi.json", "--no-color", "--request-timeout", "60"]
    command += ["--max-examples", str(max_examples), "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as folder:  # it leaves files where it runs
        environment = os.environ | {"FUZZ_KEY": _KEY}
        finished = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True
        )
    print(finished.stdout, finished.stderr, sep="", flush=True)
    found = re.search(r"(\d+) generated", finished.stdout)
    print(f"{found[1] if found else 0} requests over HTTP", flush=True)
    return finished.returncode == 0 and found is not None


def _is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError as error:
        print(f"the server is not well: {error}")
        return False


@contextmanager
def _server(log: IO[bytes]) -> Iterator[tuple[str, str]]:
    http_port, grpc_port = free_port(), free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLN_")}
    ports = {"LLN_HTTP_PORT": str(http_port), "LLN_GRPC_PORT": str(grpc_port)}
    batches = tempfile.TemporaryDirectory(prefix="fuzz-batches-")
    folders = {"LLN_BATCH_FOLDER": batches.name}
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli", "serve"],
        env=kept | _SETTINGS | ports | folders,
        stderr=log,
    )
    try:
        url = f"http://127.0.0.1:{http_port}"
        _wait_until_ready(url, process)
        yield url, f"127.0.0.1:{grpc_port}"
    finally:
        process.terminate()
        process.wait(60)
        batches.cleanup()


def _log_is_clean(log: IO[bytes]) -> bool:
    """An exception that no caller saw is one all the same."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    guilty = [number for number, line in enumerate(lines) if "Traceback" in line]
    for number in guilty[:3]:
        print(*lines[max(number - 3, 0) : number + 40], sep="\n")
    print(f"{len(guilty)} exceptions in the server's log")
    return not guilty


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    sys.exit(main())
