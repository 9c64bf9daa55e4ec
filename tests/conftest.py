"""What has to be said before torch is imported."""

import os

# Two threads that wait for each other on a busy core spin for whole time slices; tests need no speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")
