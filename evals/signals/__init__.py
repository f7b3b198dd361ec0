"""What is wrong with replies that a score does not show: loops, one token for ever, non-finite numbers, cuts.

What this catches: see the modules. What it cannot catch: a reply that is fluent and wrong.
"""
