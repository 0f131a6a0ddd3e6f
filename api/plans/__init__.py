"""Plans: forecasts of specs, and of recorded jobs under other settings."""
