"""Bounds of the methods after the paper: HiSo, FeedSign, FedKSeed, FZOO, robust means."""
