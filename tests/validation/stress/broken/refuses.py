"""Kernels that a rank cannot have."""

from validation.errors import UserError

raise UserError("no such kernels here; install them")
