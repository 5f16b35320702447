"""nodejs/llhttp: what its parser refuses in its strict mode, the server must refuse.

The cases are Markdown: a request, and what the parser logs of it. What llhttp accepts and the
server refuses is no failure: the server is stricter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.conformance.verdicts import Address, Answer, Verdict, send

_SAME_CASE = r"(?:(?!^#)[\s\S])*?"
_CASE = re.compile(
    rf"^#+ (?P<name>.*?)\n{_SAME_CASE}<!-- meta=(?P<meta>\{{.*?\}}) -->\n"
    rf"```http\n(?P<request>{_SAME_CASE})^```${_SAME_CASE}^```log\n(?P<log>{_SAME_CASE})^```$",
    re.MULTILINE,
)
_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "f": "\f"}
_PAUSES = ("code=21", "code=22", "code=23", "code=24", "code=25", "code=26", "code=27")


def verdicts(checkout: Path, address: Address) -> Iterator[Verdict]:
    for file in sorted((checkout / "test" / "request").glob("*.md")):
        for case in _CASE.finditer(file.read_text()):
            if json.loads(case["meta"]) not in ({"type": "request"}, _NO_SCAN):
                continue  # a lenient mode, or a pause
            if " error code=" in case["log"] and not _is_pause(case["log"]):
                answer = send(address, _request(case["request"], case["log"]))
                reason = case["log"].rpartition("reason=")[2].strip()
                passed = _is_refused(answer, case["log"].count("message complete"), reason)
                yield Verdict(f"{file.stem}: {case['name']}", passed, reason, str(answer))


_NO_SCAN = {"type": "request", "noScan": True}


def _is_pause(log: str) -> bool:
    return any(pause in log for pause in _PAUSES)


def _is_refused(answer: Answer, num_complete: int, reason: str) -> bool:
    """Whether nothing is answered but the requests that llhttp read, and an error. Any word is a
    method to the server, and none of its routes has one that llhttp does not know."""
    further = answer.statuses[num_complete:]
    if "method" in reason.lower() and further and further[0] in (404, 405):
        return True
    return answer.closed and further in ((), (400,))


def _request(written: str, log: str) -> bytes:
    """As llhttp's own runner reads it, with a Host where the case has none: without one the server
    would refuse every case for that alone. llhttp needs no end of a head to refuse it, the server
    does."""
    text = written.removesuffix("\n")
    text = re.sub(r"\\(\r\n|\r|\n)", "", text)
    text = re.sub(r"\r\n|\r|\n", "\r\n", text)
    text = re.sub(r"\\([rntf])", lambda found: _ESCAPES[found[1]], text)
    text = re.sub(r"\\x([0-9a-fA-F]+)", lambda found: chr(int(found[1], 16)), text)
    text = re.sub(r"\\([0-7]{1,3})", lambda found: chr(int(found[1], 8)), text)
    line, separator, rest = text.partition("\r\n")
    if not re.search(r"^host:", rest, re.IGNORECASE | re.MULTILINE):
        rest = f"Host: localhost\r\n{rest}"
    if "headers complete" not in log.rpartition("message begin")[2]:
        rest += "\r\n\r\n"
    return (line + separator + rest).encode("latin-1", "replace")
