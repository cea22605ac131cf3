"""When sessions arrive: pure, without a clock, the same for one seed."""
