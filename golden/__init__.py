"""Data with provenance: calibration records and measurement records. No code."""
