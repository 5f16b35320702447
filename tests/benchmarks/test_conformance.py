"""The cases of others as they are read from their files, and what passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.conformance import http11probe, llhttp
from benchmarks.conformance.verdicts import Address, Answer

ADDRESS = Address("127.0.0.1", 80)
MARKDOWN = """# Lengths

### A length that is none

<!-- meta={"type": "request"} -->
```http
PUT /a HTTP/1.1
Content-Length: 4\\t2


```
_A note between them_

```log
off=0 message begin
off=17 error code=11 reason="Invalid character in Content-Length"
```

### One that is read

<!-- meta={"type": "request"} -->
```http
GET / HTTP/1.1


```

```log
off=0 message begin
off=18 headers complete method=1 v=1/1 flags=0 content_length=0
off=18 message complete
```
"""
SHARP = """
        yield return new TestCase
        {
            Id = "A-CASE",
            PayloadFactory = ctx => MakeRequest(
                $"GET / HTTP/1.1\\r\\nHost: {ctx.HostHeader}\\r\\n" +
                "A: \\x01\\r\\n\\r\\n"),
            Expected = new ExpectedBehavior
            {
                Description = "400/501 or close",
            }
        };
"""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Requests in place of being sent; all are refused."""
    requests: list[bytes] = []

    def send(_: Address, request: bytes) -> Answer:
        requests.append(request)
        return Answer((400,), closed=True)

    for suite in (llhttp, http11probe):
        monkeypatch.setattr(suite, "send", send)
    return requests


def test_what_llhttp_refuses_is_sent(tmp_path: Path, sent: list[bytes]) -> None:
    folder = tmp_path / "test" / "request"
    folder.mkdir(parents=True)
    (folder / "lengths.md").write_text(MARKDOWN)
    [verdict] = llhttp.verdicts(tmp_path, ADDRESS)
    assert verdict.case == "lengths: A length that is none"
    assert verdict.passed
    head = b"PUT /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\t2\r\n\r\n"
    assert sent[0].startswith(head)


def test_cases_of_http11probe_that_are_data_are_sent(tmp_path: Path, sent: list[bytes]) -> None:
    folder = tmp_path / "src" / "Http11Probe" / "TestCases" / "Suites"
    folder.mkdir(parents=True)
    for suite in ("Compliance", "Smuggling", "MalformedInput"):
        (folder / f"{suite}Suite.cs").write_text(SHARP if suite == "Smuggling" else "")
    [verdict] = http11probe.verdicts(tmp_path, ADDRESS)
    assert (verdict.case, verdict.passed, verdict.wanted) == ("A-CASE", True, "400/501 or close")
    assert sent == [b"GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\nA: \x01\r\n\r\n"]


@pytest.mark.parametrize(
    ("wanted", "answer", "is_met"),
    [
        ("400 or close", Answer((), closed=True), True),
        ("400 or close", Answer((), closed=False), False),
        ("400/close/timeout", Answer((), closed=False), True),
        ("400 or 2xx", Answer((405,), closed=False), True),
        ("2xx", Answer((400,), closed=True), False),
        ("400", Answer((200, 400), closed=True), False),
    ],
)
def test_what_meets_an_expectation(wanted: str, answer: Answer, is_met: bool) -> None:
    assert http11probe._is_met(wanted, answer) is is_met
