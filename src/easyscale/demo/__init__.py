"""What `easyscale demo` trains: ordinary user scripts on the public API, nothing that we import ourselves."""
