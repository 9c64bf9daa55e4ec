"""Kernels run in Triton's interpreter here. It has to be asked for before triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
