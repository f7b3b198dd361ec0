"""Both arms of a comparison, in one file, and the guard that says whether they can be compared.

What this catches: arms that differ in more than the factor declared, as configured (``read``) and as seen at
run time (``guard``). What it cannot catch: a difference that no setting and no recorded fact shows.
"""
