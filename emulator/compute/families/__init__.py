"""The model families that chips compute, one file each."""
