// Package schema has the command migrate, which creates and converts tables and prints the rights that they need.
package schema
