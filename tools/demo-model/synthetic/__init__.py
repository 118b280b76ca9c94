"""Synthetic text: simple stories from a grammar of plots, and short chats in Gemma's turn format."""
