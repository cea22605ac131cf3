"""Training recipes: the fastest of a model on some chips, its utilisation, memory and goodput."""
