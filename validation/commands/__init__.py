"""The subcommands of ``lockstep``, one module each.

A command module has ``arguments(parser)`` and ``main(options, command) -> exit status``, and imports what is
slow inside them. It is registered by one line in ``validation.cli``.
"""
