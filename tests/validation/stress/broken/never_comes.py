"""Kernels of a rank that never gets ready."""

import time

time.sleep(3600)
