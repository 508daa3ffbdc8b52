"""What the commands share on the screen."""
