"""What commands show on the terminal and read from it."""
