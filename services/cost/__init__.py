"""Cost: metered usage, prices and what they come to. See README.md."""
