"""Hand-overs on one engine that ends with these files: a mere folder would keep it to the end."""
