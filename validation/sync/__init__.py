"""The layer ``sync``: mailbox protocols as data, and a model checker that explores their interleavings."""
