"""Bounds of the methods after the paper: HiSo, FeedSign, FedKSeed, low rank, FZOO, robust means."""
