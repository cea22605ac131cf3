"""Expert placement: counted load, balance, and the moves between placements. Pure."""
