"""How a store of any earlier version becomes one of this version. Each step spells its tables out and never changes."""
