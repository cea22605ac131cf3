"""Laws of kernels: how long one takes by its shape, on silicon described by a few figures.

Each law is a frozen record of constants that mean something on silicon, and one pure function of
numpy arrays. Constants may be arrays too, so a fit can give each machine or stack its own. The
constants in `shipped_laws` are fitted to kernels of five GPUs; nothing times a step by them yet.
"""
