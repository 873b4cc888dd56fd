"""The paper's theory, to run: its statements on finite worlds, on a trained model, and as samples grow in number."""
