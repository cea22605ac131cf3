"""Systems side by side: what each needs for one demand and one latency target."""
