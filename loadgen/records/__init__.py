"""Records: sessions, results, and a run's file."""
