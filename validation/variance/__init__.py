"""Do two arms differ? Statistics of paired evaluations and of forced log-probabilities.

Scores, lengths and rates come as ``data.Paired`` (questions x repeats, two arms), log-probabilities as
``forced.Forced`` (replicates x tokens per sequence). Every test returns one ``result.Test``: p-value, effect
with its interval, minimum detectable effect, and the repeats that a margin would need. ``multiplicity.holm``
adjusts all p-values of a run; ``decision`` turns interval, margin and adjusted p-value into a verdict.

Catches: differences in mean, in run-to-run variance, in the distribution of lengths and replies, and in the
log-probability of forced tokens. Cannot catch: what no question exercises, and effects below the minimum
detectable effect that each test prints. False-alarm rates and detection rates are measured by
``lockstep variance simulate``.
"""
