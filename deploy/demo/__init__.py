"""The main job, told on the terminal: `make demo`. It uses the public API and client only, as any user would."""
