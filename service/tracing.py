"""Traces of requests, sent over OTLP. Off unless an endpoint is set.

A request continues the trace of its `traceparent` header. Its trace id is in every log line of the
request, even if no traces are sent.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from service.settings import Settings, SettingsError
from service.version import version_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from engine.scheduling.request import BusyInterval, TimedResult

HEADER = "traceparent"

current_trace_id: ContextVar[str | None] = ContextVar("current_trace_id", default=None)

Attributes: TypeAlias = Mapping[str, str | int | float]
GetHeader: TypeAlias = Callable[[str], str | None]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class RequestSpan(Protocol):
    """The span of a request, described at its end, when the route and the outcome are known."""

    def describe(self, name: str, attributes: Attributes) -> None: ...


class Tracing:
    """Tracing that is turned off, and the interface of tracing that is on."""

    @contextmanager
    def request(self, protocol: str, get_header: GetHeader) -> Iterator[RequestSpan]:
        """Traces one request while the context is open."""
        offered = _TRACEPARENT.fullmatch(get_header(HEADER) or "")
        current_trace_id.set(offered[1] if offered else None)
        yield _NO_SPAN

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        """Records that texts of the current request were tokenised."""

    def served(self, results: Sequence[TimedResult[Any]]) -> None:
        """Records that texts of the current request were computed."""

    def exemplar(self) -> dict[str, str] | None:
        """Returns the label that links a measurement to the current trace, if it is sampled."""
        return None

    def stop(self, within_s: float) -> None:
        """Sends the remaining spans, for at most this many seconds."""


class _NoSpan:
    def describe(self, name: str, attributes: Attributes) -> None:
        """Does nothing: tracing is off."""


_NO_SPAN = _NoSpan()


class OtlpTracing(Tracing):
    """Sends spans for each request, its tokenisation, its time in the queue, and its units of work.

    The unit of a long text has a child span for each interval in which its tiles ran.
    """

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
            record_exception=False,  # it is in the log; a message may quote user input
            set_status_on_exception=False,
        ) as span:
            current_trace_id.set(format_trace_id(span.get_span_context().trace_id))
            yield _OtlpSpan(span)

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        now = time.time_ns()
        begun = now - int(seconds * 1e9)
        self._span("tokenise", begun, now, {"lln.texts": texts, "lln.tokens": tokens})

    def served(self, results: Sequence[TimedResult[Any]]) -> None:
        """Adds a span for the queue time of the first unit, and one for each unit."""
        clock = _EpochClock()
        units: dict[float, list[TimedResult[Any]]] = {}
        for result in results:
            if result.started_at is not None:
                units.setdefault(result.started_at, []).append(result)
        for position, (started_at, together) in enumerate(sorted(units.items())):
            began_ns = clock.ns(started_at)
            tokens = sum(result.tokens for result in together)
            attributes = {"lln.texts": len(together), "lln.tokens": tokens}
            if not position:
                queued_ns = began_ns - int(together[0].queue_s * 1e9)
                self._span("queue", queued_ns, began_ns, {"lln.texts": len(results)})
            intervals = together[0].intervals
            if intervals:
                self._tiled_unit(intervals, attributes, clock)
            else:
                ended_ns = began_ns + int(together[0].compute_s * 1e9)
                self._span("unit", began_ns, ended_ns, attributes)

    def exemplar(self) -> dict[str, str] | None:
        from opentelemetry.trace import format_trace_id, get_current_span

        context = get_current_span().get_span_context()
        return {"trace_id": format_trace_id(context.trace_id)} if context.trace_flags else None

    def stop(self, within_s: float) -> None:
        # shutdown() takes no timeout, and the collector may be unreachable.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(within_s)

    def _tiled_unit(
        self, intervals: Sequence[BusyInterval], attributes: Attributes, clock: _EpochClock
    ) -> None:
        """Adds the span of a unit that can be interrupted.

        The time of an interval beyond its `lln.device_s` went to other work.
        """
        from opentelemetry.trace import set_span_in_context

        attributes = {**attributes, "lln.tiles": sum(interval.tiles for interval in intervals)}
        began_ns, ended_ns = clock.ns(intervals[0].began_at), clock.ns(intervals[-1].ended_at)
        unit = self._tracer.start_span("unit", start_time=began_ns, attributes=attributes)
        within = set_span_in_context(unit)
        for interval in intervals:
            self._span(
                "tiles",
                clock.ns(interval.began_at),
                clock.ns(interval.ended_at),
                {"lln.tiles": interval.tiles, "lln.device_s": interval.busy_s},
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
    """Converts the monotonic clock to nanoseconds since the epoch."""

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
    """Returns the tracing of the settings. Raises SettingsError if OpenTelemetry is missing."""
    if not settings.otlp_endpoint:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise SettingsError(
            "LLN_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: install the extra "
            "'tracing'"
        ) from error
    exporter = OTLPSpanExporter(settings.otlp_endpoint, timeout=5)
    return OtlpTracing(exporter, share=settings.trace_share)


def _provider(share: float) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # Set explicitly, so that OTEL_ variables of the environment are not settings of this server.
    resource = Resource({"service.name": "lln", "service.version": version_of("lln")})
    return TracerProvider(
        resource=resource, sampler=ParentBased(TraceIdRatioBased(share)), shutdown_on_exit=False
    )
