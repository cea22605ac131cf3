"""NeuronLink: which links a chip pair uses, and how long an exchange between chips takes."""
