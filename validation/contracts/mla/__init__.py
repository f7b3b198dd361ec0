"""Multi-head latent attention over a paged FP8 cache: query, attention, value, context parallel."""
