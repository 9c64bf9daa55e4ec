"""What has to be said before torch and triton are imported by anybody."""

import os

# Two threads that wait for each other on a busy core spin for whole time slices; tests need no speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Kernels run in Triton's interpreter; tests/gpu takes this back.
os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings

# A test that takes long on a busy machine is no failure: speed has its own programs.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
