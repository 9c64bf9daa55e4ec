"""What a Prometheus server reads of a worker."""
