"""A partition of an UltraServer as one machine: its chips, fabric, power and clock together."""
