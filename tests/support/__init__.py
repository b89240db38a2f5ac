"""What tests of all layers share: packages from npm and PyPI, bubblewrap, commands that start quickly."""
