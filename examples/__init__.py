"""Programs that use dsec: read them as a trainer would write them."""
