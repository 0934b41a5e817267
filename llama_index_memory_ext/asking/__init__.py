"""What a model can read and takes, and why it fails."""
