"""defparam/smuggler: its scan for requests whose length two servers could read differently."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.conformance.verdicts import Address, Verdict

_TARGET = "/v1/embeddings"
_TIMEOUT_S = "2"
_LINE = re.compile(r"\[(?P<case>[^\]]+)\]\s*: (?P<found>(?!Checking).+)")
_ISSUE = "Issue Found"


def verdicts(checkout: Path, address: Address) -> Iterator[Verdict]:
    url = f"http://{address.host}:{address.port}{_TARGET}"
    command = [sys.executable, "smuggler.py", "-u", url, "-t", _TIMEOUT_S, "--no-color"]
    scan = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    for line in re.split(r"[\r\n]+", scan.stdout):
        if said := _LINE.fullmatch(line.strip()):
            yield Verdict(said["case"], _ISSUE not in said["found"], found=said["found"])
