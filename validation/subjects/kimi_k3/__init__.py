"""Kimi K3: configuration, weights, state, and its decode step as a program of contract operations.

What this catches: nothing by itself; it says what a step is. What it cannot represent: mailboxes, streams and
launches (a program says which operation follows which, not how they wait for each other).
"""
