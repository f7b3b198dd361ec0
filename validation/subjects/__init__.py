"""Whole models of which steps are judged, one package each. Nothing outside a package knows its model."""
