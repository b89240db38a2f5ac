"""Stories that cross layers; tests of one layer lie in the directory of that layer."""
