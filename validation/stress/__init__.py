"""Stress of real exchanges: the mailbox protocols of ``validation.sync``, run by real ranks under skew.

What this catches: kernels and memory that do not do what the proved protocol says; hangs; ranks that part.
What it cannot catch: what happens less often than the bound that a run states.
"""
