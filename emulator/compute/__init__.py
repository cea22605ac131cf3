"""Numpy kernels of the model families. Pure: arrays in, arrays out."""
