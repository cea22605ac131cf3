"""Tests of one tray, which ends with these files; a mere folder would keep it to the end."""
