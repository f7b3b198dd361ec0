"""Questions of the evaluations: pinned public sets, local copies of them, and small sets made here.

What this catches: other data than the pinned, by revision and SHA-256. What it cannot catch: errors in the
data.
"""
