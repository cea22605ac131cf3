"""What a chip computes: numpy kernels of the model families. Pure: arrays in, arrays out."""
