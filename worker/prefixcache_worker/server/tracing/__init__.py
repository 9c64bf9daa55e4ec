"""OpenTelemetry traces of requests, for who asks for them."""
