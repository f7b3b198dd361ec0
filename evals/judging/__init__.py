"""From stored samples to decisions."""
