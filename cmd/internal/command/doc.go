// Package command is shared by the commands of notifyd. It has the global flags, the choice of a database and an
// outbox, exit codes, and output. The commands are in its subpackages, by subject. Package main builds the tree.
package command
