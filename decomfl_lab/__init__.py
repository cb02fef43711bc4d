"""DeComFL, executable and exact: federated learning that sends scalars, never anything of size d."""

__version__ = "0.1.0"
