"""What passes between the parts: sessions of requests, their results, and the file of a run."""
