"""The page that shows a running server, over HTTP."""
