"""One document model for every report, apart from the terminals and files that show it.

Imports nothing emulated, served or measured: loadgen and serving both stand on it.
"""
