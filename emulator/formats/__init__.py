"""The chip's number formats and products, bit by bit: codes, blocks with scales, the array's sums.

Pure functions of arrays. `emulator.compute` multiplies with them; no model, chip or clock is known.
"""
