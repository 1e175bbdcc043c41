"""Gray upgrades: new code for some workers first, compared with the old, taken back by itself."""
