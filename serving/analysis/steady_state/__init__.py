"""Machines in steady state: partitions, operating points, pools, and sweeps of them."""
