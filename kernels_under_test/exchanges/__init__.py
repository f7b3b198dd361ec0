"""Exchanges between ranks over plain stores to peers' memory: Lamport mailboxes without multicast.

``acts`` runs the acts of a protocol (publish, poll, re-arm) as a table says, with payloads that it draws and
checks itself; ``collectives`` exchanges real tensors. Both run compiled on GPUs of one host, and in Triton's
interpreter on shared memory of several processes.
"""
