"""HBM and logical NeuronCores: the owners of a chip's bytes, and what still fits."""
