"""Engines: what turns requests into responses, behind one small interface (``evals.engines.api``)."""
