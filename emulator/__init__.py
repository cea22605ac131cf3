"""The machine: chips, fabric, time and power of a Trn3 UltraServer; no vLLM, no HTTP."""
