"""`python -m slipway.cli`."""

from slipway.cli import main

main()
