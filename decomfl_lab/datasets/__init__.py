"""Images and text by name, and how they are split among clients."""
