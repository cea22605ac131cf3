"""What a machine does in steady state: partitions, operating points, pools, sweeps of them."""
