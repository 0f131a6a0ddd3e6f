"""What the embedded engine must give, beside what else there is."""
