"""The control API's messages and services. Imports nothing of ours."""
