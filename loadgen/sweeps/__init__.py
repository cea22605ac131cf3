"""Sweeps: runs over rates or concurrencies, to the knee and the highest load that keeps the SLO."""
