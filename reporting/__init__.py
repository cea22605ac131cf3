"""One document model for every report: what it says, apart from how terminals and files show it.

It imports neither what is emulated, served or measured: loadgen and serving both stand on it.
"""
