"""Version 1 of the control API: `control.proto` and the code generated from it."""
