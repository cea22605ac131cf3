"""The page that shows a running server, and its HTTP interface."""
