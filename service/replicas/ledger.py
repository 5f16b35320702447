"""Which replica a request goes to: by the tokens that each has still to read.

A router knows what it has sent and what has been answered. What others have sent, and how far a
long text has been read, it learns from the replicas' reports. Several routers share the replicas,
each with a ledger of its own.

Short texts go where they would wait least. Texts that are read tile by tile let them pass, and go
where the fewest tokens wait. In between are requests that fill a unit of the device, or several:
each makes short ones wait for as long as it takes. So these share replicas among themselves and
leave others free of them, as many as the share of short work asks for. They spread to those only
if they would otherwise wait for many times their own length.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from service.replicas.price import Price

LONG_FROM = 512
"""A request of this many tokens fills a CPU's batch, which nothing interrupts."""

TILED_FROM = 1_024
"""Assumed until a replica says from which length on it reads texts tile by tile."""

NEVER = 2**62
"""More tokens than any text has."""

TILE_TOKENS = 64
"""About what a device reads of short texts in the time of one tile of a long one."""

LONG_SHARE = 0.25
"""The device's time that long work gets while short texts wait too: the engine's default."""

MOST_WAITING = 8.0
"""A request waits for at most this many times its own tokens before it takes a free replica."""

_HALF_LIFE_S = 30.0
_SHORT_IS_RECENT_S = 60.0
_UNDERWAY_S = 0.1
"""A request that was sent so shortly before a report is not in it."""

_LEAST_LEFT = 0.02


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a replica says of itself."""

    name: str = ""
    address: str = ""
    """Where it answers gRPC."""

    keeps: bool = False
    """Whether it holds the files and batches."""

    long_from: int = LONG_FROM
    tiled_from: int = TILED_FROM
    short: int = 0
    long: int = 0
    """Tokens of texts in batches, and of texts read tile by tile and calls."""

    at: float = 0.0
    """When these tokens were counted, by its clock; 0 if never."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], stats: Mapping[str, Any]) -> Report:
        """From the two dictionaries that Serve hands to routers, either of which may be empty. The
        first is of when the replica started."""
        return cls(**{**metadata, **stats})


@dataclass(frozen=True, slots=True)
class _Sent:
    tokens: int
    is_tiled: bool
    """Whether the device reads it tile by tile, or as a call."""

    is_long: bool
    at: float


@dataclass(slots=True)
class _Replica:
    report: Report
    requests: dict[str, _Sent] = field(default_factory=dict)
    # Of what was in the report and has been answered since.
    answered_short: int = 0
    answered_long: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The tokens that a replica has still to read, as far as this router knows."""

    short: float
    long: float
    is_held: bool
    """Whether requests that fill units are among them."""

    @property
    def tokens(self) -> float:
        return self.short + self.long


class Ledger:
    """Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._replicas: dict[str, _Replica] = {}
        self._turn = 0
        self._lock = Lock()
        self._mean_short = _Recent()
        self._mean_long = _Recent()
        self._short_seen_at = -math.inf

    def update(self, reports: Mapping[str, Report]) -> None:
        """These are all replicas, by id, and what they said last."""
        with self._lock:
            known = self._replicas
            self._replicas = {}
            for id, report in reports.items():
                replica = known.get(id) or _Replica(report)
                if report.at != replica.report.at:
                    replica.answered_short = replica.answered_long = 0
                replica.report = report
                self._replicas[id] = replica

    def addresses(self) -> set[str]:
        """Where the replicas answer gRPC."""
        with self._lock:
            return {replica.report.address for replica in self._replicas.values()}

    def report_of(self, id: str) -> Report | None:
        replica = self._replicas.get(id)
        return None if replica is None else replica.report

    def load_of(self, id: str) -> Load:
        with self._lock:
            return _load(self._replicas[id])

    def order(self, price: Price, among: Iterable[str] | None = None) -> list[str]:
        """Replicas for this request, the best first. What one replica keeps is asked of it alone:
        where it answers Serve late, Serve would take the next, which knows nothing of it."""
        with self._lock:
            ids = [
                id for id in (self._replicas if among is None else among) if id in self._replicas
            ]
            if len(ids) < 2:
                return ids
            self._turn += 1
            turn = self._turn % len(ids)
            ids = ids[turn:] + ids[:turn]  # equals take turns
            if owner := self._owner(price, ids):
                return [owner]
            loads = {id: _load(self._replicas[id]) for id in ids}
            if not self._is_long(price, ids[0]):
                return sorted(ids, key=lambda id: _short_wait(loads[id]))
            if self._is_tiled(price, ids[0]):
                return sorted(ids, key=lambda id: loads[id].tokens)
            return self._order_filling(price, loads)

    def send(self, request: str, id: str, price: Price) -> None:
        """The request goes to this replica. If it was to go to another, that is forgotten."""
        with self._lock:
            replica = self._replicas.get(id)
            if replica is None:
                return
            now = self._clock()
            self._forget(request)
            is_long, is_tiled = self._is_long(price, id), self._is_tiled(price, id)
            tokens = max(price.tokens, 1) if is_long else price.tokens
            replica.requests[request] = _Sent(tokens, is_tiled, is_long, now)
            if is_long:
                self._mean_long.add(tokens, now)
            elif tokens:
                self._mean_short.add(tokens, now)
                self._short_seen_at = now

    def answered(self, request: str, id: str | None = None) -> None:
        """The request has ended, at this replica if one is given."""
        with self._lock:
            for key in (id,) if id is not None else tuple(self._replicas):
                replica = self._replicas.get(key)
                sent = replica.requests.pop(request, None) if replica else None
                if replica is not None and sent is not None and _is_reported(sent, replica.report):
                    if sent.is_tiled:
                        replica.answered_long += sent.tokens
                    else:
                        replica.answered_short += sent.tokens

    def _forget(self, request: str) -> None:
        for replica in self._replicas.values():
            replica.requests.pop(request, None)

    def _is_long(self, price: Price, id: str) -> bool:
        return price.is_call or price.tokens >= self._replicas[id].report.long_from

    def _is_tiled(self, price: Price, id: str) -> bool:
        return price.is_call or price.tokens >= self._replicas[id].report.tiled_from

    def _owner(self, price: Price, ids: Sequence[str]) -> str | None:
        names = {id: self._replicas[id].report.name for id in ids}
        if price.mentions:
            found = (id for id, name in names.items() if name and name in price.mentions)
            return next(found, None)
        if price.is_kept:
            keepers = [id for id in ids if self._replicas[id].report.keeps]
            return min(keepers or ids, key=names.__getitem__)
        return None

    def _order_filling(self, price: Price, loads: Mapping[str, Load]) -> list[str]:
        least_first = sorted(loads, key=lambda id: loads[id].tokens)
        holders = [id for id in least_first if loads[id].is_held]
        free = [id for id in least_first if not loads[id].is_held]
        if not holders or len(free) > self._kept_free(len(loads)):
            return least_first
        if loads[holders[0]].tokens > MOST_WAITING * max(price.tokens, LONG_FROM):
            return least_first
        return holders + free

    def _kept_free(self, num_replicas: int) -> int:
        """How many replicas to leave free of long work, as long as short texts come."""
        now = self._clock()
        if now - self._short_seen_at > _SHORT_IS_RECENT_S:
            return 0
        short, long = self._mean_short.at(now), self._mean_long.at(now)
        share = short / (short + long) if short + long else 0.0
        return min(max(math.ceil(num_replicas * share), 1), num_replicas - 1)


class _Recent:
    """A sum that fades."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = -math.inf

    def add(self, value: float, now: float) -> None:
        self._sum, self._at = self.at(now) + value, now

    def at(self, now: float) -> float:
        return self._sum * math.pow(0.5, max(now - self._at, 0.0) / _HALF_LIFE_S)


def _load(replica: _Replica) -> Load:
    """What this router has sent and is open, corrected by what the replica counted: more if others
    send to it too, less if a long text is partly read."""
    report = replica.report
    own = {True: 0, False: 0}
    counted = {True: 0, False: 0}
    for sent in replica.requests.values():
        own[sent.is_tiled] += sent.tokens
        if _is_reported(sent, report):
            counted[sent.is_tiled] += sent.tokens
    short, long = float(own[False]), float(own[True])
    if report.at:
        more_short = max(report.short - replica.answered_short, 0) - counted[False]
        more_long = max(report.long - replica.answered_long, 0) - counted[True]
        short = max(short + more_short, 0.0)
        long = max(long + more_long, long * _LEAST_LEFT)
    is_held = any(sent.is_long and not sent.is_tiled for sent in replica.requests.values())
    return Load(short, long, is_held)


def _is_reported(sent: _Sent, report: Report) -> bool:
    return sent.at < report.at - _UNDERWAY_S


def _short_wait(load: Load) -> float:
    """The tokens' worth of time that a short text would wait."""
    return load.short / (1 - LONG_SHARE) + TILE_TOKENS if load.long else load.short
