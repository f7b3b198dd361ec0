"""Errors a user can cause. They end in one line and exit status 3, never in a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a missing requirement; the message is one line and names the remedy."""


class Unavailable(UserError):
    """A provider whose package or device is missing here: skipped, unless it was asked for by name."""
