"""Traces of requests, sent by OTLP. Off unless an endpoint is set, and then it costs nothing.

A caller's `traceparent` is honoured: its trace goes on here, and its id is on every log line of
the request even where no traces are sent.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeAlias

from engine.observer import Served
from engine.stretches import Stretch
from service.settings import Settings, SettingsError
from service.version import version_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

HEADER = "traceparent"

current_trace_id: ContextVar[str | None] = ContextVar("current_trace_id", default=None)

Attributes: TypeAlias = Mapping[str, str | int | float]
GetHeader: TypeAlias = Callable[[str], str | None]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class RequestSpan(Protocol):
    """What a request is told of at its end, when its route and its outcome are known."""

    def describe(self, name: str, attributes: Attributes) -> None: ...


class Tracing:
    """Tracing that is off."""

    @contextmanager
    def request(self, protocol: str, get_header: GetHeader) -> Iterator[RequestSpan]:
        """Around one request."""
        offered = _TRACEPARENT.fullmatch(get_header(HEADER) or "")
        current_trace_id.set(offered[1] if offered else None)
        yield _NOTHING

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        """Texts of the current request were read."""

    def served(self, texts: Sequence[Served]) -> None:
        """Texts of the current request came back from the device."""

    def exemplar(self) -> dict[str, str] | None:
        """The trace that a measurement made now is an example of."""
        return None

    def stop(self, within_s: float) -> None:
        """Sends what is left, as far as there is time."""


class _Nothing:
    def describe(self, name: str, attributes: Attributes) -> None:
        """Tracing is off."""


_NOTHING = _Nothing()


class OtlpTracing(Tracing):
    """Spans of each request: itself, its tokenising, its wait, the units it ran in, and below the
    unit of a long text the stretches of its tiles."""

    def __init__(self, exporter: SpanExporter, *, share: float = 1.0) -> None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = _provider(share)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lln")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, protocol: str, get_header: GetHeader) -> Iterator[RequestSpan]:
        from opentelemetry.trace import SpanKind, format_trace_id

        carrier = {name: get_header(name) or "" for name in (HEADER, "tracestate")}
        with self._tracer.start_as_current_span(
            protocol,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": protocol},
            record_exception=False,  # the log has it; a message may quote the caller's input
            set_status_on_exception=False,
        ) as span:
            current_trace_id.set(format_trace_id(span.get_span_context().trace_id))
            yield _OtlpSpan(span)

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        now = time.time_ns()
        begun = now - int(seconds * 1e9)
        self._span("tokenise", begun, now, {"lln.texts": texts, "lln.tokens": tokens})

    def served(self, texts: Sequence[Served]) -> None:
        """One span for the wait of the first, and one for each unit that texts ran in."""
        clock = _EpochClock()
        units: dict[float, list[Served]] = {}
        for text in texts:
            if text.started_at is not None:
                units.setdefault(text.started_at, []).append(text)
        for position, (started_at, together) in enumerate(sorted(units.items())):
            began_ns = clock.ns(started_at)
            tokens = sum(text.tokens for text in together)
            attributes = {"lln.texts": len(together), "lln.tokens": tokens}
            if not position:
                queued_ns = began_ns - int(together[0].queue_s * 1e9)
                self._span("queue", queued_ns, began_ns, {"lln.texts": len(texts)})
            stretches = together[0].stretches
            if stretches:
                self._sweep(stretches, attributes, clock)
            else:
                ended_ns = began_ns + int(together[0].compute_s * 1e9)
                self._span("unit", began_ns, ended_ns, attributes)

    def exemplar(self) -> dict[str, str] | None:
        from opentelemetry.trace import format_trace_id, get_current_span

        context = get_current_span().get_span_context()
        return {"trace_id": format_trace_id(context.trace_id)} if context.trace_flags else None

    def stop(self, within_s: float) -> None:
        # Its own waiting has no bound that could be given, and a collector may be gone.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(within_s)

    def _sweep(
        self, stretches: Sequence[Stretch], attributes: Attributes, clock: _EpochClock
    ) -> None:
        """A unit that others may interrupt: what a stretch lasts beyond its device_s was theirs."""
        from opentelemetry.trace import set_span_in_context

        attributes = {**attributes, "lln.tiles": sum(stretch.tiles for stretch in stretches)}
        began_ns, ended_ns = clock.ns(stretches[0].began_at), clock.ns(stretches[-1].ended_at)
        unit = self._tracer.start_span("unit", start_time=began_ns, attributes=attributes)
        within = set_span_in_context(unit)
        for stretch in stretches:
            self._span(
                "tiles",
                clock.ns(stretch.began_at),
                clock.ns(stretch.ended_at),
                {"lln.tiles": stretch.tiles, "lln.device_s": stretch.busy_s},
                within,
            )
        unit.end(ended_ns)

    def _span(
        self,
        name: str,
        begun_ns: int,
        ended_ns: int,
        attributes: Attributes,
        parent: Context | None = None,
    ) -> None:
        span = self._tracer.start_span(
            name, context=parent, start_time=begun_ns, attributes=attributes
        )
        span.end(ended_ns)


class _EpochClock:
    """What the monotonic clock said, as the time of day in nanoseconds."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def ns(self, monotonic_s: float) -> int:
        return self._offset_ns + int(monotonic_s * 1e9)


class _OtlpSpan:
    def __init__(self, span: Span) -> None:
        self._span = span

    def describe(self, name: str, attributes: Attributes) -> None:
        self._span.update_name(name)
        self._span.set_attributes(attributes)


def tracing_of(settings: Settings) -> Tracing:
    """What the settings ask for; an endpoint without the packages to reach it is a mistake."""
    if not settings.otlp_endpoint:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise SettingsError(
            "LLN_OTLP_ENDPOINT is set and OpenTelemetry, the extra 'tracing', is not installed"
        ) from error
    exporter = OTLPSpanExporter(settings.otlp_endpoint, timeout=5)
    return OtlpTracing(exporter, share=settings.trace_share)


def _provider(share: float) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # Given here in full: the environment's OTEL_ variables would be settings outside the table.
    resource = Resource({"service.name": "lln", "service.version": version_of("lln")})
    return TracerProvider(
        resource=resource, sampler=ParentBased(TraceIdRatioBased(share)), shutdown_on_exit=False
    )
