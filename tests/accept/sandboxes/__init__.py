"""Times of sandboxes."""
