"""The processes of a server: their parents, their signals and their ends."""
