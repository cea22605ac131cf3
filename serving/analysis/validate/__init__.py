"""The cost model held against public measurements, and the fits that it takes from them."""
