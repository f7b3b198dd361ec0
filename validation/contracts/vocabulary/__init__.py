"""The two ends of the step: embedding of token ids, and final norm with logits."""
