"""The control API's messages and services, once it has some. Imports nothing of ours."""
