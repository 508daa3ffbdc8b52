"""The endpoints of inference engines that take and return token ids."""
