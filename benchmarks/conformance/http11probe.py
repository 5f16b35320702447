"""MDA2AV/Http11Probe: the cases that its C# states as data.

A case is read if its request is one string and its expectation a status, or a description such as
"400/501 or close". A server that answers with an error of its API has read the request, as one
that answers 2xx: the suite expects an echo at / that an API has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.conformance.verdicts import Address, Answer, Verdict, send

_SUITES = ("Compliance", "Smuggling", "MalformedInput")
_STRING = r'\$?"(?:[^"\\]|\\.)*"'
_ID = re.compile(r'Id = "([^"]+)"')
_REQUEST = re.compile(rf"PayloadFactory = ctx => MakeRequest\(\s*((?:{_STRING}\s*\+?\s*)+)\)")
_STATUS = re.compile(r"ExpectedStatus = StatusCodeRange\.Exact\((\d{3})\)")
_EXPECTED = re.compile(r'Expected = new ExpectedBehavior\s*\{[\s\S]*?Description = "([^"]+)"')
_ANY_OF = re.compile(r"(?:\d{3}|2xx|close|timeout)(?:(?: or |/)(?:\d{3}|2xx|close|timeout))*")
_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "0": "\0", '"': '"', "\\": "\\"}
_READ = range(200, 500)
_NOT_READ = (400, 501, 505)


def verdicts(checkout: Path, address: Address) -> Iterator[Verdict]:
    folder = checkout / "src" / "Http11Probe" / "TestCases" / "Suites"
    for suite in _SUITES:
        source = (folder / f"{suite}Suite.cs").read_text()
        for block in source.split("yield return new TestCase")[1:]:
            case, wanted, request = _ID.search(block), _wanted(block), _REQUEST.search(block)
            if case and wanted and request:
                answer = send(address, _bytes(request[1], address))
                yield Verdict(case[1], _is_met(wanted, answer), wanted, str(answer))


def _wanted(block: str) -> str | None:
    if status := _STATUS.search(block):
        return f"{status[1]} or close" if "AllowConnectionClose = true" in block else status[1]
    described = _EXPECTED.search(block)
    return described[1] if described and _ANY_OF.fullmatch(described[1]) else None


def _bytes(source: str, address: Address) -> bytes:
    """The request, from the literals of C# that state it."""
    written = "".join(literal.lstrip("$")[1:-1] for literal in re.findall(_STRING, source))
    host = f"{address.host}:{address.port}"
    written = written.replace("{ctx.HostHeader}", host).replace("{ctx.Host}", address.host)
    written = re.sub(r"\\([rnt0\"\\])", lambda found: _ESCAPES[found[1]], written)
    written = re.sub(r"\\x([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), written)
    written = re.sub(r"\\u([0-9A-Fa-f]{4})", lambda found: chr(int(found[1], 16)), written)
    return written.encode("latin-1", "replace")


def _is_met(wanted: str, answer: Answer) -> bool:
    return any(_is_one(one, answer) for one in re.split(r" or |/", wanted))


def _is_one(wanted: str, answer: Answer) -> bool:
    first = answer.statuses[0] if answer.statuses else None
    if wanted == "close":
        return first is None and answer.closed
    if wanted == "timeout":
        return first is None and not answer.closed
    if wanted == "2xx":
        return first in _READ and first not in _NOT_READ
    return first == int(wanted)
