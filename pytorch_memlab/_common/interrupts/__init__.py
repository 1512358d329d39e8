"""Work that Ctrl-C and other signals leave neither half begun nor half ended."""
