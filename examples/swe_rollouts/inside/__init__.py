"""What is put into the grading sandbox."""
