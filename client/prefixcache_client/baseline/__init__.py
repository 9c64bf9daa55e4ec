"""What a worker does on a fixed matrix of loads, recorded, so that a change can be judged by it."""
