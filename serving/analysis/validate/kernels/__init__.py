"""Laws of kernels fitted to measured ones, and their errors on machines and stacks left out."""
