"""Parameters and optimizer state that follow the records, bit for bit."""
