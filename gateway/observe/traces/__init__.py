"""Records of requests as OpenTelemetry traces. It needs the extra `otel`."""
