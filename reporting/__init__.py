"""One document model for every report, apart from the terminals and files that show it.

It imports neither what is emulated, served or measured: loadgen and serving both stand on it.
"""
