"""Pure decisions about machines: state + command → change or refusal. No clock, no I/O, no randomness."""
