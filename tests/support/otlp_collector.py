"""A collector of OpenTelemetry that remembers the metrics it receives by OTLP over HTTP.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class OtlpCollector:
    """The last value of each metric that was received, and its attributes, by its name."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received: dict[str, tuple[float, dict[str, str]]] = {}

    @property
    def environment(self) -> Mapping[str, str]:
        """The settings of an Airflow that sends its metrics here."""
        return {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }

    def receive(self, content: bytes) -> None:
        """Keep the metrics of a request."""
        request: Any = ExportMetricsServiceRequest.FromString(content)
        scopes = (scope for each in request.resource_metrics for scope in each.scope_metrics)
        for metric in (metric for scope in scopes for metric in scope.metrics):
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                attributes = {each.key: each.value.string_value for each in point.attributes}
                value = getattr(point, point.WhichOneof("value"))
                self.received[metric.name] = (value, attributes)


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """A collector on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.receive(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            """Do not write to the output of the tests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = OtlpCollector(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
