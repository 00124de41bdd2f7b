"""What memory a device and its host have, read once before anything is allocated."""
