"""Start of our programs: options, and import paths of programs and their children. `emulator`,
`serving` and `loadgen` depend on it; it imports none of our packages.
"""
