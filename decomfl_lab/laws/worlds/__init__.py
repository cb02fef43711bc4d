"""A federation as nodes, frames and disks, and two searches through its histories."""
