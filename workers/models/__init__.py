"""Model folders and the decoder that engine and trainer share."""
