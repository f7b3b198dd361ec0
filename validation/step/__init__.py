"""Whole decode steps of two paths side by side: the first place where they part.

What this catches: what is right in every kernel and wrong between them: state that outlives a step, rollback,
batch switches, padding, fallbacks. What it cannot catch: waits and mailboxes (one process plays all ranks).
"""
