"""Tables, plots and one self-contained HTML page."""
