"""Load on a server: what to send, when, to whom, and what came of it."""
