"""A load generator for servers with the OpenAI HTTP interface.

It sees the wire alone: no emulator, no serving code, no engine.
"""
