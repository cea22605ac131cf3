"""The machine: chips, fabric, time and power of a Trn3 UltraServer. Knows nothing of vLLM or HTTP."""
