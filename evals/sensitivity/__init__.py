"""How small a fault the forced comparison notices, measured on a real model with faults planted in it."""
