"""infinity, a server of the same API, over the same weights.

It needs an environment of its own, because it pins other versions of our dependencies:

    python3.11 -m venv .venv-infinity
    .venv-infinity/bin/pip install 'infinity-emb[server,torch]==0.0.78' 'typer<0.16' 'click<8.2'

It truncates texts at the 256 tokens that the model's folder names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.servers import Served, free_port, other_server
from benchmarks.store import ROOT

PLACE = Path(os.environ.get("INFINITY_VENV", ROOT / ".venv-infinity"))
MODEL = "minilm"
TRUNCATES_AT = 256


def is_installed() -> bool:
    return (PLACE / "bin" / "infinity_emb").exists()


@contextmanager
def infinity_server(folder: Path, threads: int) -> Iterator[Served]:
    port = free_port()
    command = [
        *(str(PLACE / "bin" / "infinity_emb"), "v2", "--model-id", str(folder)),
        *("--served-model-name", MODEL, "--url-prefix", "/v1"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--engine", "torch", "--device", "cpu", "--dtype", "float32"),
        *("--no-bettertransformer", "--no-model-warmup", "--log-level", "error"),
    ]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": "",  # ours would hide its own packages
    }
    with other_server(command, port, **environment) as served:
        yield served
