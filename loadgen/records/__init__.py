"""Records: sessions of requests, their results, and the file of a run."""
