"""A collector for tests: receives OTLP with the official messages, writes down all that it gets, and answers what it is told to.

Usage: otlp_receiver.py grpc|http FILE [--port PORT] [--certificate FILE --key FILE]

It says its port in a first line. A line of input is JSON: {"metrics": [ANSWER...], "logs": [ANSWER...]}; these answers are given to the
next requests, in this order, and after them all is well again. An answer is one of

    {"code": "UNAVAILABLE"}                  a status of gRPC, with "retry_s" also a RetryInfo
    {"status": 503, "retry_after": "2"}      a status of HTTP
    {"rejected": 3, "message": "why"}        success of all but so many
    {"hang": true}                           no answer at all
    {"drop": true}                           HTTP: the connection is closed instead

A line {"open_metrics": TEXT} is answered with what Prometheus's own parser reads in the text.

Each request becomes a line of FILE. Of metrics it also has what OpenTelemetry's own exporter for Prometheus makes of them.
"""

import argparse
import json
import ssl
import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.exporter.prometheus import _CustomCollector
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.openmetrics.parser import text_string_to_metric_families

LOCK = threading.Lock()
ANSWERS = {"metrics": [], "logs": []}
ENDED = threading.Event()
SERVERS = []
REQUESTS = {
    "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
    "logs": logs_service_pb2.ExportLogsServiceRequest,
}
RESPONSES = {
    "metrics": metrics_service_pb2.ExportMetricsServiceResponse,
    "logs": logs_service_pb2.ExportLogsServiceResponse,
}


def value(one):
    """A value of an attribute, as Python has it."""
    return getattr(one, one.WhichOneof("value"))


def attributes(all_of_them):
    return {one.key: value(one.value) for one in all_of_them}


def points(data):
    return [
        sdk.NumberDataPoint(
            attributes=attributes(point.attributes),
            start_time_unix_nano=point.start_time_unix_nano,
            time_unix_nano=point.time_unix_nano,
            value=point.as_double if point.WhichOneof("value") == "as_double" else point.as_int,
        )
        for point in data.data_points
    ]


def metric(sent):
    """A message as the SDK's own type for it."""
    if sent.WhichOneof("data") == "gauge":
        data = sdk.Gauge(data_points=points(sent.gauge))
    else:
        data = sdk.Sum(
            data_points=points(sent.sum),
            aggregation_temporality=sdk.AggregationTemporality(sent.sum.aggregation_temporality),
            is_monotonic=sent.sum.is_monotonic,
        )
    return sdk.Metric(name=sent.name, description=sent.description, unit=sent.unit, data=data)


def prometheus(request):
    """The samples that OpenTelemetry's exporter for Prometheus makes of a request."""
    of_resource = [
        sdk.ResourceMetrics(
            resource=Resource(attributes(one.resource.attributes)),
            scope_metrics=[
                sdk.ScopeMetrics(
                    scope=InstrumentationScope(scope.scope.name, scope.scope.version),
                    metrics=[metric(sent) for sent in scope.metrics],
                    schema_url="",
                )
                for scope in one.scope_metrics
            ],
            schema_url="",
        )
        for one in request.resource_metrics
    ]
    collector = _CustomCollector(disable_target_info=True, scope_info_enabled=False)
    collector.add_metrics_data(sdk.MetricsData(resource_metrics=of_resource))
    return samples(collector.collect())


def samples(families):
    """Name, labels and value of each sample. A label with an empty value is none."""
    return [
        [one.name, {name: label for name, label in one.labels.items() if label}, one.value]
        for family in families
        for one in family.samples
    ]


def answer_to(signal, request, headers, file):
    """Writes a request down, and gives the answer to it."""
    with LOCK:
        answer = ANSWERS[signal].pop(0) if ANSWERS[signal] else {}
        written = {
            "signal": signal,
            "at": time.time(),
            "answer": answer,
            "headers": headers,
            "message": MessageToDict(request, preserving_proto_field_name=True),
        }
        if signal == "metrics":
            written["prometheus"] = prometheus(request)
        file.write(json.dumps(written) + "\n")
        file.flush()
    return answer


def response(signal, answer):
    made = RESPONSES[signal]()
    if "rejected" in answer:
        partial = made.partial_success
        if signal == "metrics":
            partial.rejected_data_points = answer["rejected"]
        else:
            partial.rejected_log_records = answer["rejected"]
        partial.error_message = answer.get("message", "")
    return made


def export(signal, file):
    def handle(self, request, context):
        headers = dict(context.invocation_metadata())
        answer = answer_to(signal, request, headers, file)
        if answer.get("hang"):
            ENDED.wait()
        if "code" in answer:
            code = grpc.StatusCode[answer["code"]]
            if "retry_s" in answer:
                delay = duration_pb2.Duration(seconds=answer["retry_s"])
                detail = any_pb2.Any()
                detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
                status = status_pb2.Status(code=code.value[0], message="slowly", details=[detail])
                context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
            context.abort(code, answer.get("message", "as it was told"))
        return response(signal, answer)

    return handle


def serve_grpc(options, file):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    logs = type("Logs", (logs_service_pb2_grpc.LogsServiceServicer,), {"Export": export("logs", file)})
    metrics = type("Metrics", (metrics_service_pb2_grpc.MetricsServiceServicer,), {"Export": export("metrics", file)})
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(logs(), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(metrics(), server)
    address = f"127.0.0.1:{options.port}"
    if options.certificate:
        with open(options.key, "rb") as key, open(options.certificate, "rb") as certificate:
            credentials = grpc.ssl_server_credentials([(key.read(), certificate.read())])
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    server.start()
    # A server that nobody refers to ends.
    SERVERS.append(server)
    return port


def serve_http(options, file):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            signal = self.path.rsplit("/", 1)[-1]
            is_right = self.path in ("/v1/metrics", "/v1/logs")
            if not is_right or self.headers["Content-Type"] != "application/x-protobuf":
                self.send_error(404)
                return
            request = REQUESTS[signal].FromString(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = answer_to(signal, request, headers, file)
            if answer.get("hang"):
                ENDED.wait()
            if answer.get("drop"):
                self.close_connection = True
                return
            body = response(signal, answer).SerializeToString()
            if "status" in answer:
                body = status_pb2.Status(message=answer.get("message", "as it was told")).SerializeToString()
            self.send_response(answer.get("status", 200))
            if "retry_after" in answer:
                self.send_header("Retry-After", answer["retry_after"])
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate, options.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("protocol", choices=["grpc", "http"])
    parser.add_argument("file")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    options = parser.parse_args()
    with open(options.file, "a") as file:
        serve = serve_grpc if options.protocol == "grpc" else serve_http
        print(json.dumps({"port": serve(options, file)}), flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            if "open_metrics" in told:
                read = samples(text_string_to_metric_families(told["open_metrics"]))
                print(json.dumps({"samples": read}), flush=True)
                continue
            with LOCK:
                for signal, answers in told.items():
                    ANSWERS[signal].extend(answers)
            print(json.dumps({"told": True}), flush=True)
        ENDED.set()


main()
