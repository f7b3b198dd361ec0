"""Carrying out a comparison: engines opened, tasks asked, walks walked, everything stored."""
