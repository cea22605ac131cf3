"""What to run where, and what machines then give: answers of the cost model alone."""
