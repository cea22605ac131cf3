"""HBM and logical NeuronCores: who holds which bytes of a chip, and what still fits."""
