// Package command has what the commands of notifyd share: the configuration and the flags that all of them have, the
// flags that choose a database and an outbox, exit codes, and how results are printed. The commands themselves are
// in the packages below it, by subject; package main puts them into one tree.
package command
