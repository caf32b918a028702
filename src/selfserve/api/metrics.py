"""Prometheus metrics: the engine's counters as of its last heartbeat, and counts of requests."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from selfserve.engine.interface import Engine, EngineState

PREFIX = "self"
LEVELS = frozenset({"cache_bytes", "cache_entries"})
"""Counters of the heartbeat that can fall again."""

BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class EngineCollector(Collector):
    """Reads the engine when the metrics are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        return []  # the names are known only from the first heartbeat on

    def collect(self) -> Iterator[Metric]:
        heartbeat = self._engine.heartbeat
        is_ready = float(self._engine.state == EngineState.READY)
        yield GaugeMetricFamily(f"{PREFIX}_ready", "1 if requests are served", is_ready)
        yield GaugeMetricFamily(
            f"{PREFIX}_requests_running", "Requests in slots", heartbeat.num_running
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_requests_waiting", "Requests in the queue", heartbeat.num_waiting
        )
        for name, value in sorted(heartbeat.counters.items()):
            text = f"Engine: {name.replace('_', ' ')}"
            if name in LEVELS:
                yield GaugeMetricFamily(f"{PREFIX}_engine_{name}", text, value)
            else:
                yield CounterMetricFamily(f"{PREFIX}_engine_{name}", text, value)


class RequestMetrics:
    """Counts of HTTP requests by route and status."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine))
        self._requests = Counter(
            "http_requests",
            "Requests answered; status 0: the client left first",
            ["route", "status"],
            namespace=PREFIX,
            registry=self.registry,
        )
        self._seconds = Histogram(
            "http_request_seconds",
            "From arrival to the last byte",
            ["route"],
            namespace=PREFIX,
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self._cancelled = Counter(
            "requests_cancelled",
            "Generations whose client left before the end",
            namespace=PREFIX,
            registry=self.registry,
        )

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Counts one finished request."""
        route = getattr(scope.get("route"), "path", None) or "unknown"
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_cancelled(self) -> None:
        self._cancelled.inc()
