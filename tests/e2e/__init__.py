"""Tests of whole servers and engines, as their users start them."""
