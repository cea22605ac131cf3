"""Published rates of models that no fit has seen, beside predictions by the fit that ships."""
