"""Tests of one live server, which ends with these files; a mere folder would keep it."""
