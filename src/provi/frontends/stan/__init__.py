"""Programs of Stan."""
