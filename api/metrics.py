"""What a gateway counts, in Prometheus' text format. Gauges are of this moment, counters since its start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from api.gateway import Gateway

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Metric(NamedTuple):
    name: str
    meaning: str
    value: Callable[[Gateway], float]

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


_METRICS = (
    _Metric("sockets", "Accepted WebSockets.", lambda gateway: gateway.stats.websockets),
    _Metric("attached_sessions", "Sessions held by a client here.", lambda gateway: gateway.stats.sockets),
    _Metric("followers", "Journals followed for clients.", lambda gateway: gateway.stats.followers),
    _Metric("lagging_clients", "Clients that read slower than is spoken.", lambda gateway: gateway.lagging),
    _Metric("pending_bytes", "Events waiting for sockets.", lambda gateway: gateway.stats.pending_bytes),
    _Metric(
        "store_silence_seconds",
        "Time since the store answered.",
        lambda gateway: gateway.store.last_contact_s(),
    ),
    _Metric("opened_total", "Sessions opened.", lambda gateway: gateway.stats.opened),
    _Metric("resumes_total", "Sessions resumed or taken over.", lambda gateway: gateway.stats.resumed),
    _Metric("takeovers_total", "Sessions taken over.", lambda gateway: gateway.stats.taken_over),
    _Metric("commands_total", "Commands of clients.", lambda gateway: gateway.stats.commands),
    _Metric(
        "refused_upgrades_total",
        "Requests refused for key or origin.",
        lambda gateway: gateway.stats.refused_upgrades,
    ),
    _Metric(
        "refused_openings_total",
        "Openings refused for want of a worker.",
        lambda gateway: gateway.stats.refused_openings,
    ),
    _Metric(
        "refused_messages_total",
        "Messages refused before the journal.",
        lambda gateway: gateway.stats.refused_messages,
    ),
    _Metric("lags_total", "Times a client's buffer was dropped.", lambda gateway: gateway.stats.lagged),
    _Metric("evictions_total", "Clients closed for taking nothing.", lambda gateway: gateway.stats.evicted),
    _Metric("deadlines_total", "Deadlines stated by this gateway.", lambda gateway: gateway.stats.deadlines),
    _Metric("failovers_total", "Sessions given another worker.", lambda gateway: gateway.stats.reassigned),
    _Metric(
        "suspected_clients_total",
        "Clients of dead gateways declared lost.",
        lambda gateway: gateway.stats.suspected,
    ),
)


def exposition(gateway: Gateway) -> str:
    """Give all metrics of a gateway as text."""
    lines: list[str] = []
    for metric in _METRICS:
        name = f"duplex_gateway_{metric.name}"
        lines.append(f"# HELP {name} {metric.meaning}")
        lines.append(f"# TYPE {name} {metric.kind}")
        lines.append(f"{name} {metric.value(gateway)}")
    return "\n".join(lines) + "\n"
