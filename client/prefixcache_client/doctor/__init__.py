"""Finds out what is wrong with a running worker's KV cache, step by step."""
