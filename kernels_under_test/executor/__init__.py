"""The specialised executor: whole steps of prepared batches over a provider, with a fallback.

What it cannot show: waits between ranks; CUDA graphs and side streams (on a CPU a captured step is its bound
arguments, run again).
"""
