"""Which kernel runs for which case: tables that say so beforehand, and a record of what was launched."""
