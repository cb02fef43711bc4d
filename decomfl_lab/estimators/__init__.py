"""From values of the loss along random directions to scalars."""
