"""DeComFL over Flower."""
