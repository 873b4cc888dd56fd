"""The theory shown: tables for the terminal, a section of a run's page, and the curve's figure and page."""
