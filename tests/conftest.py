"""Shared set-up: one thread a process, no network, no noise."""

import os

# before torch is imported anywhere
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
