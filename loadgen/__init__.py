"""A load generator for servers that speak the OpenAI HTTP interface.

It sees the wire alone: it must not know the emulator, the serving code, or the engine behind them.
"""
