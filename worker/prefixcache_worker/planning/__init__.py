"""How much memory a model's KV takes, how many requests fit, and what to ask a worker for."""
