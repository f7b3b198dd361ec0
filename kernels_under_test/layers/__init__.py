"""Whole layers of Kimi K3 for one rank, in two arms, for timing: portable specialised kernels, and the stock
path from released libraries.

One GPU plays one rank. What other ranks would send lies in the mailboxes from the start, so an arm does the
work of its rank and reads what it would have received; it does not wait. Both arms are treated alike.
"""
