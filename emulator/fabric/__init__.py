"""NeuronLink: the links between chips, and the duration of exchanges over them."""
