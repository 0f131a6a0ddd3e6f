"""What environments printed."""
