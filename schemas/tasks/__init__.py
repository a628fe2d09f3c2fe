"""What each capability takes and gives: one typed request and one typed result for each task."""
