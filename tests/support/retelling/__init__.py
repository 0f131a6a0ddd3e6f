"""An environment package whose conversation is compacted."""
