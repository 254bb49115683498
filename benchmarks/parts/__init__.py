"""What the benchmark scripts share. Nothing here measures or prints by itself."""
