"""What this service reaches besides its database and its bus."""
