"""Files as text: plain text and Markdown as they are, HTML and PDF as the text that people read."""
