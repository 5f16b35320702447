"""Killing a bulk job where a part is begun and not whole."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from tests.service.processes import ForkedProcess


def kill_within_a_part(process: subprocess.Popen[bytes] | ForkedProcess, folder: Path) -> None:
    """Kills the job once a part in the folder has a whole piece.

    The job stands still while its files are looked at: no piece is seen half written, and the part
    is not finished before the kill.
    """
    while process.poll() is None:
        if has_pieces(folder):
            process.send_signal(signal.SIGSTOP)
            if has_pieces(folder):
                break
            process.send_signal(signal.SIGCONT)
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it was killed before its end"


def has_pieces(folder: Path) -> bool:
    return any(_has_a_whole_piece(path) for path in folder.glob("out.*.partial/*.begun"))


def _has_a_whole_piece(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first_line = file.readline()
            sizes: list[int] = json.loads(first_line.partition(b" ")[2])["sizes"]
            return path.stat().st_size >= len(first_line) + sum(sizes)
    except (OSError, ValueError):
        return False
