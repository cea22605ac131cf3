"""The subcommands of `ultraserve`, one thin file each."""
