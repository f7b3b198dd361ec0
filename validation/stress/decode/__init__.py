"""Whole decode steps on ranks that exchange through mailboxes, bit for bit as in one process without any.

What this catches: see ``run``. What it cannot catch: what all ranks, apart and together, have wrong in the
same way; ``lockstep step`` judges that.
"""
