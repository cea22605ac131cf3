"""The page that shows a running server, and what it asks: HTTP on the control service's port."""
