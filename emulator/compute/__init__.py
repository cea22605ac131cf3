"""What a chip computes: numpy kernels of the model families, each with its shapes. Pure: arrays in, arrays out."""
