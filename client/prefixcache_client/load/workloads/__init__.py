"""What is sent: workloads."""
