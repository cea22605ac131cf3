"""Sweeps over rates or concurrencies, to the knee and the SLO's highest load."""
