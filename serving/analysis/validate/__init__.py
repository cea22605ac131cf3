"""The cost model against public measurements, and the fits made from them."""
