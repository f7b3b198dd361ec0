"""Planted faults and honest variants: plain FP32 implementations with one switch a fault, and the runs that
count how many of them the judge notices (``qualify``) and how wide honest variants spread (``calibrate``)."""
