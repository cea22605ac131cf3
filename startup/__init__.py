"""Start of our programs: their options, and where they and their children import from.

`emulator`, `serving` and `loadgen` stand on it; it imports none of our packages.
"""
