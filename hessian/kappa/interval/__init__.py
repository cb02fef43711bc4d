"""How the interval of κ is made: by Lanczos and probes, by walks for parts of the spectrum, and how long it takes."""
