"""The control API `ultraserve`, by version."""
